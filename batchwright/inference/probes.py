"""Probes: small test requests that show if a backend or a line is at fault for a failure."""

import asyncio
import json
import time
from collections.abc import Callable
from enum import IntEnum

from batchwright.contracts.terms import Endpoint
from batchwright.inference.backend_client import InferenceClient
from batchwright.inference.discovery import ListingFailed
from batchwright.inference.transport.base import TargetUrl
from batchwright.rules.dispatch.retry_policy import SUCCESS, Budget

_TIMEOUT_SECONDS = 15.0
_REUSE_SECONDS = 1.0  # a result is reused for so long, so that failing lines do not multiply requests
_ID = "batchwright-probe"
# The cheapest request for each endpoint. Endpoints without a cheap request are left out.
_REQUESTS: dict[Endpoint, dict[str, object]] = {
    Endpoint.CHAT_COMPLETIONS: {"messages": [{"role": "user", "content": "ping"}], "max_tokens": 1},
    Endpoint.COMPLETIONS: {"prompt": "ping", "max_tokens": 1},
    Endpoint.RESPONSES: {"input": "ping", "max_output_tokens": 16},
    Endpoint.MESSAGES: {"messages": [{"role": "user", "content": "ping"}], "max_tokens": 1},
    Endpoint.EMBEDDINGS: {"input": "ping"},
    Endpoint.MODERATIONS: {"input": "ping"},
}
PROBED_ENDPOINTS = tuple(_REQUESTS)


class ProbeResult(IntEnum):
    """The result of a probe (a small test request). A higher value means that more of the backend works."""

    NONE = 0  # nothing works
    ALIVE = 1  # its health check succeeds, or it lists its models
    NORMAL = 2  # it answers inference requests


class UpstreamProber:
    """A sender of probes (small test requests) to one model at one backend.

    If several lines need a probe at the same time, they share its result.

    Attributes:
        answered: endpoints at which the model has answered a probe successfully. Callers also add endpoints
            at which the model has answered requests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.answered = set[Endpoint]()
        self._clock = clock
        self._running: dict[Endpoint | None, asyncio.Task[ProbeResult]] = {}
        self._last: dict[Endpoint | None, tuple[float, ProbeResult]] = {}

    async def probe(
        self,
        client: InferenceClient,
        url: str,
        model: str,
        endpoint: Endpoint | None,
        priority: int | None = None,
    ) -> ProbeResult:
        """Send a test request to the backend, and return how much of the backend works.

        If the last result is less than 1 s old, send nothing and return the last result.

        Args:
            client: client of the backend.
            url: URL of the backend.
            model: the model to test.
            endpoint: endpoint of the test request. If None, only the backend's health or model list is
                requested.
            priority: priority of the test request, the same as the priority of the lines; None for no
                priority.
        """
        last = self._last.get(endpoint)
        if last is not None and self._clock() - last[0] < _REUSE_SECONDS:
            return last[1]
        task = self._running.get(endpoint)
        if task is None:
            task = asyncio.create_task(self._probe(client, url, model, endpoint, priority))
            self._running[endpoint] = task
            task.add_done_callback(lambda ended: self._ended(endpoint, ended))
        return await asyncio.shield(task)

    async def _probe(
        self,
        client: InferenceClient,
        url: str,
        model: str,
        endpoint: Endpoint | None,
        priority: int | None,
    ) -> ProbeResult:
        if endpoint is not None and (request := _REQUESTS.get(endpoint)) is not None:
            prioritized = {} if priority is None else {"priority": priority}
            body = json.dumps({"model": model, **request, **prioritized}).encode()
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    outcome = await client.send(TargetUrl.of(url + endpoint), body, _ID)
            except TimeoutError:
                pass
            else:
                if outcome.verdict is SUCCESS:
                    self.answered.add(endpoint)
                if outcome.verdict.budget is Budget.SETTLED:
                    return ProbeResult.NORMAL
        return ProbeResult.ALIVE if await _is_alive(client, url) else ProbeResult.NONE

    def _ended(self, endpoint: Endpoint | None, task: asyncio.Task[ProbeResult]) -> None:
        del self._running[endpoint]
        if not task.cancelled() and task.exception() is None:
            self._last[endpoint] = self._clock(), task.result()


async def _is_alive(client: InferenceClient, url: str) -> bool:
    """Return True if the backend answers a health check.

    First, request the path `/health`:

    - If the response is a success, return True.
    - If the status is from 400 to 499, the backend possibly does not have this path. Request the model list,
      and return True if the backend returns the list.
    - In all other cases, return False.

    The model list is not requested first. Some servers that answer no other requests still return it.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            health = await client.poll_job(b"GET", TargetUrl.of(url + "/health"), _ID)
            if 200 <= health.status < 300:
                return True
            if not 400 <= health.status < 500:
                return False
            await client.models(url)
    except (ListingFailed, TimeoutError):
        return False
    return True
