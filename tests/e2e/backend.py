"""A simulated backend as tests see it: its faults, and what it was asked when."""

import httpx
from pydantic import BaseModel

from tests.clients import http_client


class Entry(BaseModel):
    """All asks of one request id; times are Unix seconds. `statuses` has `gone` where the client hung up."""

    key: str
    asked: int
    answered: int
    last_asked_at: float
    statuses: dict[str, int]


class Ledger(BaseModel):
    asked: int
    in_flight: int
    entries: list[Entry]


class Backend:
    def __init__(self, url: str) -> None:
        self.url = url

    async def faults(self, **fault: str | float | int) -> None:
        async with _http() as http:
            (await http.post(self.url + "/admin/faults", json=fault)).raise_for_status()

    async def heal(self) -> None:
        async with _http() as http:
            (await http.delete(self.url + "/admin/faults")).raise_for_status()

    async def forget(self) -> None:
        """All that was asked so far, but what is in flight."""
        async with _http() as http:
            (await http.delete(self.url + "/admin/ledger")).raise_for_status()

    async def ledger(self, *, entries: bool = True) -> Ledger:
        """Without entries it only has the totals."""
        async with _http() as http:
            told = {"entries": "true" if entries else "false"}
            answer = await http.get(self.url + "/admin/ledger", params=told)
        return Ledger.model_validate_json(answer.raise_for_status().content)


def _http() -> httpx.AsyncClient:
    return http_client()
