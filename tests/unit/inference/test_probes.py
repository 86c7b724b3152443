"""Probes (requests that test a backend after lines failed): which requests they send, and which lines share a
probe.
"""

import asyncio
import json

import httpx

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.terms import Endpoint
from batchwright.inference.backend_client import InferenceClient
from batchwright.inference.probes import ProbeResult, UpstreamProber
from batchwright.inference.router import ModelRouter
from batchwright.inference.upstream import Backend
from batchwright.rules.dispatch.retry_policy import RetryPolicy
from tests.fakes.routing import Clock, config_of
from tests.fakes.settings import load
from tests.fakes.transport import PooledEngine

URL = "http://a"
GOOD = httpx.Response(200, json={"choices": [{"message": {"role": "assistant", "content": "pong"}}]})


class ProbeFixture:
    """A backend that answers requests only while `open` is set.

    `requests` has the methods and paths of all requests, `bodies` has their bodies.
    """

    def __init__(self) -> None:
        self.answer, self.requests = GOOD, list[str]()
        self.bodies: list[bytes] = []
        self.open, self.began = asyncio.Event(), asyncio.Event()
        self.open.set()
        engine = PooledEngine(httpx.MockTransport(self._handle))
        self.client = InferenceClient(engine, load())
        self.probes = UpstreamProber()

    async def evidence(self) -> ProbeResult:
        return await self.probes.probe(self.client, URL, "m", Endpoint.CHAT_COMPLETIONS)

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(f"{request.method} {request.url.path}")
        self.bodies.append(request.content)
        self.began.set()
        await self.open.wait()
        return self.answer


async def waiting(probes: ProbeFixture, count: int) -> list["asyncio.Task[ProbeResult]"]:
    """Return `count` tasks that wait for the result of the same probe. The backend does not answer it yet."""
    probes.open.clear()
    tasks = [asyncio.create_task(probes.evidence()) for _ in range(count)]
    await probes.began.wait()
    return tasks


async def test_lines_that_need_a_probe_at_the_same_time_share_it() -> None:
    probes = ProbeFixture()
    tasks = await waiting(probes, 20)
    probes.open.set()
    assert set(await asyncio.gather(*tasks)) == {ProbeResult.NORMAL}
    assert probes.requests == ["POST /v1/chat/completions"]


async def test_an_aborted_line_does_not_cancel_the_probe_of_others() -> None:
    probes = ProbeFixture()
    aborted, other = await waiting(probes, 2)
    aborted.cancel()
    await asyncio.wait([aborted])
    probes.open.set()
    assert await other is ProbeResult.NORMAL


async def test_no_probe_starts_a_job() -> None:
    probes = ProbeFixture()
    jobs = {"submit_endpoint": "/jobs", "poll_endpoint_template": "/jobs/{id}"}
    config = config_of(BackendConfig(url=URL), kind="poll", jobs=jobs)
    route = ModelRouter("m", RetryPolicy(), 1, Clock())
    route.update(config, [Backend(URL, probes.client)], RetryPolicy())
    assert await route.upstreams[0].probe(Endpoint.CHAT_COMPLETIONS) is ProbeResult.ALIVE
    assert probes.requests == ["GET /health"]


async def test_a_probe_has_the_priority_of_the_lines_at_its_backend() -> None:
    probes = ProbeFixture()
    route = ModelRouter("m", RetryPolicy(), 1, Clock())
    config = config_of(BackendConfig(url=URL, priority=5))
    route.update(config, [Backend(URL, probes.client)], RetryPolicy())
    assert await route.upstreams[0].probe(Endpoint.CHAT_COMPLETIONS) is ProbeResult.NORMAL
    [body] = probes.bodies
    assert json.loads(body)["priority"] == 5


async def test_a_backend_that_answers_probes_is_not_probed_again_within_a_second() -> None:
    probes, now = ProbeFixture(), 1000.0
    probes.probes = UpstreamProber(lambda: now)
    assert [await probes.evidence() for _ in range(5)] == [ProbeResult.NORMAL] * 5
    assert len(probes.requests) == 1
    now += 1.0
    assert await probes.evidence() is ProbeResult.NORMAL
    assert len(probes.requests) == 2
