"""Compares the results in storage with the simulator's ledger, its record of all requests that it
received.
"""

import asyncio
import time
from dataclasses import dataclass, field

from pydantic import BaseModel

from batchwright.rules import ids
from batchwright.rules.results.segment_format import RecordKind, SegmentDamaged
from batchwright.storage.base import DatedObject, Storage, StorageError
from tests.clients import http_client
from tests.segments import read_index

_RESULTS, _BATCHES = "/results/", "/batches/"
_EVERY_SECONDS = 3.0
_CLOCK_SECONDS = 1.0  # S3 dates objects to the second


class Entry(BaseModel):
    """The simulator's record of all requests with one id. Times are Unix seconds."""

    key: str
    user: str | None = None
    requests: int
    completed: int
    last_request_at: float


class Ledger(BaseModel):
    in_flight: int
    entries: list[Entry]


@dataclass
class Witness:
    """An observer of the storage that finds requests which are sent again although their result is stored.

    `settled` maps the id of a request to the time at which its result was stored. The time is at most a
    second late. If the result was not seen before its batch ended, it is the time at which the batch ended.
    """

    objects: Storage
    simulator: str
    settled: dict[str, float] = field(default_factory=dict[str, float])
    _read: set[str] = field(default_factory=set[str])
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def watch(self) -> None:
        """Look for new results every few seconds, until the task is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_EVERY_SECONDS)

    async def look(self) -> None:
        """Read all segments (objects with results) that have not been read before."""
        async with self._looking:
            segments = [info async for info in self.objects.inventory("") if _is_segment(info.key)]
            for segment in segments:
                if segment.key not in self._read:
                    await self._read_one(segment)

    async def under_way(self) -> int:
        """Return how many requests are in flight, or have an answer whose result is not stored yet.

        If a process is killed, these requests may be sent again.
        """
        await self.look()
        ledger = await self.ledger()
        open_ = sum(entry.completed > 0 and entry.key not in self.settled for entry in ledger.entries)
        return ledger.in_flight + open_

    def ended(self, requests: list[str]) -> None:
        """Count these requests as settled.

        Their batch has its files, so its segments may already be deleted.
        """
        for request in requests:
            self.settled.setdefault(request, time.time())

    async def repeated(self) -> tuple[list[str], dict[str, Entry]]:
        """Return the requests that were sent after their result was seen in storage.

        Return also the entries of the simulator's ledger, by the id of the request.
        """
        ledger = {entry.key: entry for entry in (await self.ledger()).entries}
        again = [
            request
            for request, seen_at in self.settled.items()
            if request in ledger and ledger[request].last_request_at > seen_at
        ]
        return again, ledger

    async def ledger(self) -> Ledger:
        async with http_client() as http:
            answer = await http.get(self.simulator + "/admin/ledger")
        return Ledger.model_validate_json(answer.raise_for_status().content)

    async def _read_one(self, segment: DatedObject) -> None:
        key = segment.key
        try:
            index = read_index(await self.objects.get(key))
        except (StorageError, SegmentDamaged):
            return  # compacted just now, or the batch has ended
        self._read.add(key)
        seen_at = min(time.time(), segment.written_at.timestamp() + _CLOCK_SECONDS)
        batch_id = next(part for part in key.split("/") if ids.is_batch_id(part))
        for entry in index:
            if entry.kind is RecordKind.SETTLED:
                self.settled.setdefault(ids.request_id(batch_id, entry.offset), seen_at)


def _is_segment(key: str) -> bool:
    return _BATCHES in key and _RESULTS in key
