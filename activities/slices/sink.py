"""Keeping results: segments flushed every 2 s, 256 results or 4 MiB, whichever comes first."""

import asyncio
import time
from collections.abc import Iterable
from secrets import token_hex

from activities.slices.work import Stored
from batchwright.contracts.openai import Usage
from batchwright.inference.limits import ByteBudget
from batchwright.rules import keys
from batchwright.rules.segments import Kind, Record, SegmentWriter, read_records
from batchwright.storage.base import ObjectInfo, Storage, StorageUnavailable
from batchwright.telemetry.metrics import Metrics

FLUSH_SECONDS = 2.0
FLUSH_RESULTS = 256
FLUSH_BYTES = 4 * 1024 * 1024
OVERDUE_SECONDS = 2.0
_COMPACT_BYTES = 8 * 1024 * 1024
_LAST_TRIES = 5


class SegmentNames:
    """Names of one attempt's segments: no other attempt or process makes the same."""

    def __init__(self, folder: str, generation: int, attempt: int) -> None:
        self._folder, self._generation, self._attempt = folder, generation, attempt
        self._nonce, self._sequence = token_hex(4), 0

    def next(self) -> str:
        self._sequence += 1
        return keys.segment(self._folder, self._generation, self._attempt, self._nonce, self._sequence)


class SegmentSink:
    """Collects records and stores them; what is stored is settled and counted, nothing else is."""

    def __init__(self, storage: Storage, budget: ByteBudget, metrics: Metrics, names: SegmentNames) -> None:
        self._storage, self._budget, self._metrics, self._names = storage, budget, metrics, names
        self._open: list[Record] = []
        self._open_bytes = 0
        self._open_since = 0.0
        self._flushing = asyncio.Lock()
        self._full = asyncio.Event()
        self.segments: list[ObjectInfo] = []
        self.completed = self.failed = 0
        self.usage = Usage()

    def start_with(self, stored: Stored) -> None:
        self.segments = list(stored.segments)
        self.completed = sum(stored.settled.values())
        self.failed = len(stored.settled) - self.completed
        self.usage = stored.usage

    def add(self, record: Record) -> None:
        if not self._open:
            self._open_since = time.monotonic()
        self._open.append(record)
        self._open_bytes += len(record.payload)
        self._budget.hold_answer(len(record.payload))
        if len(self._open) >= FLUSH_RESULTS or self._open_bytes >= FLUSH_BYTES:
            self._full.set()

    @property
    def is_overdue(self) -> bool:
        """Whether something has waited for storage too long for more to be asked."""
        if not self._open:
            return False
        waited = time.monotonic() - self._open_since
        return waited > FLUSH_SECONDS + OVERDUE_SECONDS or len(self._open) >= 4 * FLUSH_RESULTS

    async def run(self) -> None:
        """Flushes while the turn lasts. A storage that fails is asked again; dispatch pauses meanwhile."""
        while True:
            try:
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._full.wait()
            except TimeoutError:
                pass
            self._full.clear()
            try:
                await self.flush()
            except StorageUnavailable:
                await asyncio.sleep(0.5)

    async def close(self) -> None:
        """The last flush, tried for a few seconds. Raises StorageUnavailable: the rest is asked again."""
        for attempt in range(_LAST_TRIES):
            try:
                return await self.flush()
            except StorageUnavailable:
                if attempt + 1 == _LAST_TRIES:
                    raise
                await asyncio.sleep(0.5 * 2**attempt)

    async def flush(self) -> None:
        """Stores what is open as one segment. Raises StorageUnavailable and keeps it."""
        async with self._flushing:
            records = list(self._open)
            if not records:
                return
            with self._metrics.flush_seconds.time():
                await self._store(_segment_of(records))
            del self._open[: len(records)]
            self._open_since = time.monotonic()
            size = sum(len(record.payload) for record in records)
            self._open_bytes -= size
            self._budget.drop_answer(size)
            for record in records:
                self._count(record)

    def abandon(self) -> None:
        """Forgets what is open: another attempt owns the slice, or storage takes nothing."""
        self._budget.drop_answer(self._open_bytes)
        self._open, self._open_bytes = [], 0

    async def compact(self) -> None:
        """One segment in place of the slice's several; the old ones go once the new one is stored."""
        old = self.segments
        if len(old) < 2 or sum(info.size for info in old) > _COMPACT_BYTES:
            return
        best: dict[int, Record] = {}
        for info in old:
            for record in read_records(await self._storage.get(info.key)):
                known = best.get(record.offset)
                if record.kind is Kind.SETTLED and (known is None or (record.success and not known.success)):
                    best[record.offset] = record
        self.segments = []
        await self._store(_segment_of(best.values()))
        for info in old:
            await self._storage.delete(info.key)

    async def _store(self, data: bytes) -> None:
        key = self._names.next()
        await self._storage.put(key, data)
        self.segments.append(ObjectInfo(key, len(data)))

    def _count(self, record: Record) -> None:
        if record.kind is Kind.SETTLED:
            self.completed += record.success
            self.failed += not record.success
            self.usage += record.usage


def _segment_of(records: Iterable[Record]) -> bytes:
    writer = SegmentWriter()
    for record in records:
        writer.add(record)
    return writer.finish()
