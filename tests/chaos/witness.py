"""What the ledger says about lines that were seen settled in storage, and about what was under way."""

import asyncio
import time
from dataclasses import dataclass, field

from pydantic import BaseModel

from batchwright.rules import ids
from batchwright.rules.segments import Kind, SegmentDamaged, read_index
from batchwright.storage.base import Storage, StorageError
from tests.clients import http_client

_RESULTS, _BATCHES = "/results/", "/batches/"
_EVERY_SECONDS = 3.0


class Entry(BaseModel):
    """The simulator's memory of one request id; times are Unix seconds of the machine's one clock."""

    key: str
    asked: int
    answered: int
    last_asked_at: float


class Ledger(BaseModel):
    in_flight: int
    entries: list[Entry]


@dataclass
class Witness:
    """`settled` maps request ids to the moment at which their results had been seen in storage."""

    objects: Storage
    simulator: str
    settled: dict[str, float] = field(default_factory=dict[str, float])
    _read: set[str] = field(default_factory=set[str])
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def watch(self) -> None:
        """Looks again and again; ends by being cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_EVERY_SECONDS)

    async def look(self) -> None:
        """Reads every segment that is new."""
        async with self._looking:
            keys = [info.key async for info in self.objects.list("") if _is_segment(info.key)]
            for key in keys:
                if key not in self._read:
                    await self._read_one(key)

    async def under_way(self) -> int:
        """How many requests are in flight, or answered and not seen settled: a kill may cost those."""
        await self.look()
        ledger = await self.ledger()
        open_ = sum(entry.answered > 0 and entry.key not in self.settled for entry in ledger.entries)
        return ledger.in_flight + open_

    def ended(self, requests: list[str]) -> None:
        """The answered lines of a batch that has its files: its segments may be gone unseen."""
        for request in requests:
            self.settled.setdefault(request, time.time())

    async def asked_again(self) -> tuple[list[str], dict[str, Entry]]:
        """Requests asked after they had been seen settled, and the whole ledger by request."""
        ledger = {entry.key: entry for entry in (await self.ledger()).entries}
        again = [
            request
            for request, seen_at in self.settled.items()
            if request in ledger and ledger[request].last_asked_at > seen_at
        ]
        return again, ledger

    async def ledger(self) -> Ledger:
        async with http_client() as http:
            answer = await http.get(self.simulator + "/admin/ledger")
        return Ledger.model_validate_json(answer.raise_for_status().content)

    async def _read_one(self, key: str) -> None:
        try:
            index = read_index(await self.objects.get(key))
        except (StorageError, SegmentDamaged):
            return  # compacted just now, or the batch has ended
        self._read.add(key)
        seen_at = time.time()
        batch_id = next(part for part in key.split("/") if ids.is_batch_id(part))
        for entry in index:
            if entry.kind is Kind.SETTLED:
                self.settled.setdefault(ids.request_id(batch_id, entry.offset), seen_at)


def _is_segment(key: str) -> bool:
    return _BATCHES in key and _RESULTS in key
