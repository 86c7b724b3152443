"""Failed interactive calls: a probe of the backend decides whose fault the failure is.

The client gets its error without waiting for the probe, and the calls that wait for it use little memory.
"""

import asyncio
import gc

import httpx
import pytest

from batchwright.api.services.calls import report_tasks
from batchwright.api.services.calls.backend_answer import SentCall
from batchwright.inference.transport.httpx_transport import HttpxTransport
from batchwright.inference.upstream import Upstream
from tests.unit.api.routes.calls.interactive_api import ASK, CHAT, A, Fixture
from tests.unit.api.routes.calls.test_interactive_circuits import STREAM, cut, is_probe, opened


class HangingProbes:
    """A backend that fails each call, and answers no probe (a request that tests the backend) until `ends` is
    set.
    """

    def __init__(self, api: Fixture, failing: str = "500") -> None:
        self.probed, self.ends = asyncio.Event(), asyncio.Event()
        self._failing = failing
        assert api.router is not None
        self.upstream: Upstream = api.router.upstreams[0]
        transport = HttpxTransport(httpx.MockTransport(self._answer), connect_seconds=1)
        self.upstream.backend.client.set_transport(transport)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        if is_probe(request):
            self.probed.set()
            await self.ends.wait()
            return httpx.Response(500)
        return cut(request) if self._failing == "cut" else httpx.Response(int(self._failing))


@pytest.mark.parametrize("body", [ASK, STREAM])
@pytest.mark.parametrize("stops", [False, True])
async def test_a_client_gets_its_error_before_a_probe_of_the_backend_ends(
    api: Fixture, body: dict[str, object], stops: bool
) -> None:
    backend = HangingProbes(api, "cut" if body is STREAM else "500")
    upstream = backend.upstream
    for _ in range(upstream.circuit.failures_to_open):
        async with asyncio.timeout(60):
            answer = await api.http.post(CHAT, json=body)
        assert b"error" in answer.content
    await backend.probed.wait()
    assert upstream.outstanding == 1
    if stops:
        await api.calls.close()
    backend.ends.set()
    await api.calls.reports.ended()
    await asyncio.sleep(0)  # the callbacks of the report
    assert upstream.outstanding == 0
    if not stops:
        await opened(api, A, body=body)


@pytest.mark.parametrize("failing", ["500", "401"])
async def test_a_report_that_waits_for_a_probe_keeps_no_body_in_memory(api: Fixture, failing: str) -> None:
    backend = HangingProbes(api, failing)
    for _ in range(backend.upstream.circuit.failures_to_open + 3):
        await api.http.post(CHAT, json=ASK)
    await backend.probed.wait()
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, SentCall)]
    backend.ends.set()
    await api.calls.reports.ended()


@pytest.mark.parametrize("failing", ["500", "401"])
async def test_the_number_of_reports_that_wait_for_a_probe_is_limited(
    api: Fixture, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.setattr(report_tasks, "MAX_REPORTS", 2)
    backend = HangingProbes(api, failing)
    for _ in range(backend.upstream.circuit.failures_to_open + 5):
        assert (await api.http.post(CHAT, json=ASK)).status_code in (500, 502)
    assert backend.upstream.outstanding == 2
    backend.ends.set()
    await api.calls.reports.ended()
    await asyncio.sleep(0)  # the callbacks of the reports
    assert backend.upstream.outstanding == 0
