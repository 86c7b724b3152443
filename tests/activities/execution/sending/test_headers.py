"""Headers from the creation of a batch are forwarded with each of its requests, whatever their kind."""

import asyncio

import httpx

from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.contracts.temporal_payloads.batch import Caller
from batchwright.contracts.terms import Endpoint
from tests.activities.execution.backend_jobs.job_server import JobServer, config_of, done
from tests.activities.execution.fixture import MODEL, ExecutionFixture, line_of, ok, plan_slice, request
from tests.activities.execution.sending.embedder import embedded, inputs_of
from tests.activities.execution.sending.embedder import line_of as embedding_of

CALLER = Caller(headers={"x-team": "rivers", "x-tier": "1"})


async def test_each_request_has_the_headers_of_its_batch() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(number) for number in range(3)])
    assert (await execution.run(request(caller=CALLER))).completed == 3
    assert [(sent.headers["x-team"], sent.headers["x-tier"]) for sent in execution.requests] == [
        ("rivers", "1")
    ] * 3


async def test_a_header_in_the_registry_overrides_the_header_of_a_batch() -> None:
    backend = GatewayConfig(url="http://backend", headers={"X-Tier": "operator"})
    execution = ExecutionFixture(ok, config=ModelConfig(backends=[backend]))
    await plan_slice(execution.storage, [line_of(0)])
    await execution.run(request(caller=CALLER))
    [sent] = execution.requests
    assert sent.headers.get_list("x-tier") == ["operator"]
    assert sent.headers["x-team"] == "rivers"


async def test_a_batch_without_headers_adds_none() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0)])
    await execution.run(request())
    assert "x-team" not in execution.requests[0].headers


async def test_jobs_are_submitted_and_polled_with_the_headers_of_the_batch() -> None:
    server = JobServer(config_of())
    await server.plan(1)
    seen: list[httpx.Request] = []
    answer = server.execution.answer

    async def record(sent: httpx.Request) -> httpx.Response:
        seen.append(sent)
        return await answer(sent)

    server.execution.answer = record
    server.every_status = done()
    assert (await server.execution.run(request(caller=CALLER))).completed == 1
    assert {sent.method for sent in seen} == {"GET", "POST"}
    assert all(sent.headers["x-team"] == "rivers" for sent in seen)


async def test_lines_of_batches_with_different_headers_do_not_share_a_request() -> None:
    sizes: list[tuple[str, int]] = []

    async def answer(sent: httpx.Request) -> httpx.Response:
        inputs = inputs_of(sent.content)
        sizes.append((sent.headers["x-team"], len(inputs)))
        return embedded(inputs)

    execution = ExecutionFixture(ok, models={MODEL: {"inputs_per_request": 4}}, model_in_flight=8)
    execution.answer = answer
    await plan_slice(execution.storage, [embedding_of(text) for text in ("a", "bb")])
    plain = request(endpoint=Endpoint.EMBEDDINGS)
    batches = [
        plain.model_copy(
            update={"batch_id": f"batch_{team:0>32}", "caller": Caller(headers={"x-team": team})}
        )
        for team in ("rivers", "lakes")
    ]
    results = await asyncio.gather(*(execution.run(batch) for batch in batches))
    assert [result.completed for result in results] == [2, 2]
    for team in ("rivers", "lakes"):
        assert sum(size for sent_team, size in sizes if sent_team == team) == 2
    assert max(size for _, size in sizes) == 2
