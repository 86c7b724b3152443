"""Headers of a batch's creation: every request of its slices has them, of whatever kind."""

import asyncio

import httpx

from batchwright.contracts.batch import Caller
from batchwright.contracts.openai import Endpoint
from batchwright.contracts.registry import GatewayConfig, ModelConfig
from tests.activities.execution_house import MODEL, House, line_of, ok, plan_slice, request
from tests.activities.job_server import JobServer, config_of, done
from tests.activities.test_execution_groups import embedded, inputs_of
from tests.activities.test_execution_groups import line_of as embedding_of

CALLER = Caller(headers={"x-team": "rivers", "x-tier": "1"})


async def test_each_request_has_the_headers_of_its_batch() -> None:
    house = House(ok)
    await plan_slice(house.storage, [line_of(number) for number in range(3)])
    assert (await house.run(request(caller=CALLER))).completed == 3
    assert [(asked.headers["x-team"], asked.headers["x-tier"]) for asked in house.requests] == [
        ("rivers", "1")
    ] * 3


async def test_what_the_registry_says_of_a_header_goes_before_a_batch() -> None:
    backend = GatewayConfig(url="http://backend", headers={"X-Tier": "operator"})
    house = House(ok, config=ModelConfig(backends=[backend]))
    await plan_slice(house.storage, [line_of(0)])
    await house.run(request(caller=CALLER))
    [asked] = house.requests
    assert asked.headers.get_list("x-tier") == ["operator"]
    assert asked.headers["x-team"] == "rivers"


async def test_a_batch_without_any_adds_none() -> None:
    house = House(ok)
    await plan_slice(house.storage, [line_of(0)])
    await house.run(request())
    assert "x-team" not in house.requests[0].headers


async def test_jobs_are_submitted_and_asked_after_with_them() -> None:
    server = JobServer(config_of())
    await server.plan(1)
    seen: list[httpx.Request] = []
    answer = server.house.answer

    async def note(asked: httpx.Request) -> httpx.Response:
        seen.append(asked)
        return await answer(asked)

    server.house.answer = note
    server.says_all = done()
    assert (await server.house.run(request(caller=CALLER))).completed == 1
    assert {asked.method for asked in seen} == {"GET", "POST"}
    assert all(asked.headers["x-team"] == "rivers" for asked in seen)


async def test_lines_of_batches_with_other_headers_do_not_share_a_request() -> None:
    asked: list[tuple[str, int]] = []

    async def answer(sent: httpx.Request) -> httpx.Response:
        inputs = inputs_of(sent.content)
        asked.append((sent.headers["x-team"], len(inputs)))
        return embedded(inputs)

    house = House(ok, models={MODEL: {"inputs_per_request": 4}}, model_in_flight=8)
    house.answer = answer
    await plan_slice(house.storage, [embedding_of(text) for text in ("a", "bb")])
    plain = request(endpoint=Endpoint.EMBEDDINGS)
    batches = [
        plain.model_copy(
            update={"batch_id": f"batch_{team:0>32}", "caller": Caller(headers={"x-team": team})}
        )
        for team in ("rivers", "lakes")
    ]
    results = await asyncio.gather(*(house.run(batch) for batch in batches))
    assert [result.completed for result in results] == [2, 2]
    for team in ("rivers", "lakes"):
        assert sum(size for whose, size in asked if whose == team) == 2
    assert max(size for _, size in asked) == 2
