"""The simulated backend, as tests use it: its faults, and its ledger, which counts all received requests."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
from openai import AsyncOpenAI
from openai.types import Batch
from pydantic import BaseModel

from tests.clients import http_client
from tests.e2e.batches import submit, until


class Entry(BaseModel):
    """All requests that the simulator received with one request id. Times are Unix seconds.

    `statuses` counts the responses by status. Requests whose client disconnected count as `disconnected`.
    """

    key: str
    model: str
    user: str | None = None
    requests: int
    completed: int
    last_request_at: float
    statuses: dict[str, int]


class Ledger(BaseModel):
    requests: int
    in_flight: int
    entries: list[Entry]


class Fault(BaseModel):
    """A fault that is set. `hits` is the number of requests that it has affected."""

    id: str
    hits: int


class Faults(BaseModel):
    faults: list[Fault]


class Hold:
    """A fault by which the simulator holds requests: they get no response until the test calls `release`."""

    def __init__(self, url: str, fault_id: str) -> None:
        self._url, self._id = url, fault_id

    async def requests(self) -> int:
        """Return the number of requests that have been held so far; 0 after `release`."""
        async with _http() as http:
            answer = await http.get(self._url + "/admin/faults")
        faults = Faults.model_validate_json(answer.raise_for_status().content).faults
        return sum(fault.hits for fault in faults if fault.id == self._id)

    async def reached(self, least: int = 1) -> None:
        """Wait until at least `least` requests have been held since the beginning."""

        async def are_held() -> bool:
            return await self.requests() >= least

        await until(are_held)

    async def submit(
        self, client: AsyncOpenAI, lines: list[dict[str, object]], *, least: int = 1, window: str = "24h"
    ) -> Batch:
        """Submit a batch. Return it when `least` of its requests wait at the backend for their responses.

        No other requests that are held may be sent at the same time.
        """
        before = await self.requests()
        batch = await submit(client, lines, window)
        await self.reached(before + least)
        return batch

    async def release(self) -> None:
        """Let the simulator answer the held requests and hold no others. Further calls do nothing."""
        async with _http() as http:
            answer = await http.delete(f"{self._url}/admin/faults/{self._id}")
            assert answer.status_code in (200, 404), answer.text


class Backend:
    def __init__(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def hold(self, model: str | None = None) -> AsyncGenerator[Hold]:
        """Hold the requests of a model, or of all models, until the end of the `with` block or `release`.

        Faults that were set earlier have precedence. Lines whose requests are held stay unsettled, however
        long the test takes.
        """
        async with _http() as http:
            answer = await http.post(self.url + "/admin/faults", json={"kind": "hold", "model": model})
        hold = Hold(self.url, Fault.model_validate_json(answer.raise_for_status().content).id)
        try:
            yield hold
        finally:
            await hold.release()

    async def faults(self, **fault: str | float | int) -> None:
        async with _http() as http:
            (await http.post(self.url + "/admin/faults", json=fault)).raise_for_status()

    async def heal(self) -> None:
        async with _http() as http:
            (await http.delete(self.url + "/admin/faults")).raise_for_status()

    async def forget(self) -> None:
        """Clear the ledger. Only requests in flight stay in it."""
        async with _http() as http:
            (await http.delete(self.url + "/admin/ledger")).raise_for_status()

    async def ledger(self, *, entries: bool = True) -> Ledger:
        """Return the ledger of all received requests. If `entries` is False, it has only the totals."""
        async with _http() as http:
            parameters = {"entries": "true" if entries else "false"}
            answer = await http.get(self.url + "/admin/ledger", params=parameters)
        return Ledger.model_validate_json(answer.raise_for_status().content)


def _http() -> httpx.AsyncClient:
    return http_client()
