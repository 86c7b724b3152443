"""If the registry sets a priority for a backend, each request with lines to this backend has it
in its body.
"""

import json

import httpx

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.contracts.terms import Endpoint
from tests.activities.execution.backend_jobs.job_server import JobServer, config_of, done
from tests.activities.execution.fixture import (
    MODEL,
    ExecutionFixture,
    body_of,
    line_of,
    ok,
    plan_slice,
    request,
)
from tests.activities.execution.sending.embedder import embedded, inputs_of
from tests.activities.execution.sending.embedder import line_of as embedding_of

BACKEND = GatewayConfig(url="http://backend", priority=10)
CONFIG = ModelConfig(backends=[BACKEND])


def priorities(requests: list[httpx.Request]) -> list[object]:
    return [json.loads(sent.content)["priority"] for sent in requests]


async def test_a_line_cannot_choose_another_priority_than_that_of_the_backend() -> None:
    execution = ExecutionFixture(ok, config=CONFIG, model_in_flight=1)
    chosen = body_of(1).replace(b'"model"', b'"priority":-99,"model"')
    await plan_slice(execution.storage, [line_of(0), b'{"custom_id":"1","body":%b}' % chosen])
    assert (await execution.run(request())).completed == 2
    assert priorities(execution.requests) == [10, 10]


async def test_a_backend_without_a_priority_gets_the_one_of_the_line() -> None:
    execution = ExecutionFixture(ok, config=ModelConfig(backends=[BackendConfig(url="http://backend")]))
    chosen = body_of(0).replace(b'"model"', b'"priority":-99,"model"')
    await plan_slice(execution.storage, [b'{"custom_id":"0","body":%b}' % chosen])
    await execution.run(request())
    assert execution.requests[0].content == chosen


async def test_a_request_that_lines_share_has_the_priority_once() -> None:
    async def answer(sent: httpx.Request) -> httpx.Response:
        return embedded(inputs_of(sent.content))

    execution = ExecutionFixture(ok, config=CONFIG, models={MODEL: {"inputs_per_request": 4}})
    execution.answer = answer
    await plan_slice(execution.storage, [embedding_of(text) for text in ("a", "bb", "ccc")])
    assert (await execution.run(request(endpoint=Endpoint.EMBEDDINGS))).completed == 3
    [shared] = execution.requests
    assert shared.content.count(b'"priority"') == 1
    assert json.loads(shared.content) == {"model": MODEL, "priority": 10, "input": ["a", "bb", "ccc"]}


async def test_a_job_is_submitted_with_the_priority() -> None:
    server = JobServer(config_of().model_copy(update={"backends": [BACKEND]}))
    await server.plan(2)
    server.every_status = done()
    assert (await server.execution.run(request())).completed == 2
    assert priorities(server.submits) == [10, 10]
