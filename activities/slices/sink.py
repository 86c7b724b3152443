"""Keeping results: segments flushed every 2 s, 256 results or 4 MiB, whichever comes first."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable
from secrets import token_hex
from typing import NamedTuple

from activities.slices.work import Stored
from batchwright.contracts.openai import Usage
from batchwright.inference.limits import ByteBudget
from batchwright.rules import keys
from batchwright.rules.segments import Kind, Located, Record, SegmentWriter, locate_records
from batchwright.rules.usage import total
from batchwright.storage.base import ObjectInfo, Storage, StorageUnavailable
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
FLUSH_SECONDS = 2.0
FLUSH_RESULTS = 256
FLUSH_BYTES = 4 * 1024 * 1024
OVERDUE_SECONDS = 2.0
LAST_FLUSH_SECONDS = 3.0  # beyond a grace; the workflow waits a little longer
_MOST_OPEN_BYTES = 4 * FLUSH_BYTES
_COMPACT_BYTES = 8 * 1024 * 1024
_RETRY_FIRST, _RETRY_LONGEST = 0.25, 4.0


class _Found(NamedTuple):
    """A record within its segment."""

    data: bytes
    place: Located


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
        self.overdue_at = math.inf  # when something will have waited for storage too long, monotonic
        self._flushing = asyncio.Lock()
        self._full = asyncio.Event()
        self._failing = False
        self.segments: list[ObjectInfo] = []
        self.knows_the_past = False  # before that, the counts are not the slice's
        self.completed = self.failed = 0
        self.usage = Usage()

    def start_with(self, stored: Stored) -> None:
        self.segments = list(stored.segments)
        self.completed = sum(stored.settled.values())
        self.failed = len(stored.settled) - self.completed
        self.usage = stored.usage
        self.knows_the_past = True

    def add(self, record: Record) -> None:
        if not self._open:
            self._waits_since(time.monotonic())
        self._open.append(record)
        self._open_bytes += len(record.payload)
        self._budget.answers += len(record.payload)
        if len(self._open) >= FLUSH_RESULTS or self._open_bytes >= FLUSH_BYTES:
            self._full.set()
            if self._open_bytes >= _MOST_OPEN_BYTES:
                self.overdue_at = 0.0

    @property
    def is_overdue(self) -> bool:
        """Whether something has waited for storage too long, or too much of it, for more to be asked."""
        return time.monotonic() > self.overdue_at

    async def run(self) -> None:
        """Flushes while the turn lasts. A storage that fails is asked again; dispatch pauses meanwhile."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._full.wait()
            self._full.clear()
            await self.close(lambda: True)

    async def close(self, may_retry: Callable[[], bool]) -> None:
        """Flushes, again and again while storage fails and `may_retry`.

        Raises:
            StorageUnavailable: what is open is not stored; it will be asked again.
        """
        wait = _RETRY_FIRST
        while True:
            try:
                return await self.flush()
            except StorageUnavailable as error:
                if not self._failing:
                    logger.warning("results cannot be stored", extra={"error": str(error)})
                self._failing = True
                if not may_retry():
                    raise
            await asyncio.sleep(wait)
            wait = min(wait * 2, _RETRY_LONGEST)

    async def flush(self) -> None:
        """Stores what is open as one segment. Raises StorageUnavailable and keeps it."""
        async with self._flushing:
            records = list(self._open)
            if not records:
                return
            with self._metrics.flush_seconds.time():
                await self._store(_segment_of(records))
            self._failing = False
            del self._open[: len(records)]
            size = self._count(records)
            self._open_bytes -= size
            self._budget.answers -= size
            self._waits_since(time.monotonic() if self._open else math.inf)

    def abandon(self) -> None:
        """Forgets what is open: another attempt owns the slice, or storage takes nothing."""
        self._budget.answers -= self._open_bytes
        self._open, self._open_bytes = [], 0
        self._waits_since(math.inf)

    def _waits_since(self, moment: float) -> None:
        is_much = self._open_bytes >= _MOST_OPEN_BYTES
        self.overdue_at = 0.0 if is_much else moment + FLUSH_SECONDS + OVERDUE_SECONDS

    async def compact(self, least: int, still_ours: Callable[[], bool]) -> None:
        """One segment in place of several, where `least` or more are small enough for that.

        The old ones go once the new one is stored. Raises StorageUnavailable.
        """
        old = self._small_segments()
        if len(old) < least:
            return
        kept: dict[int, _Found] = {}
        finals: dict[int, _Found] = {}
        for info in old:
            data = await self._storage.get(info.key)
            for place in locate_records(data):
                known = kept.get(place.offset)
                if place.final:
                    finals.setdefault(place.offset, _Found(data, place))
                elif known is None or _outweighs(place, known.place):
                    kept[place.offset] = _Found(data, place)
        writer = SegmentWriter()
        for found in (*kept.values(), *_of_failures(finals, kept)):
            writer.copy(*found)
        await self._store(writer.finish())
        for info in old:
            if still_ours():
                await self._storage.delete(info.key)

    def _small_segments(self) -> list[ObjectInfo]:
        """As many of the smallest as fit into memory together, in the order they were written."""
        small: list[ObjectInfo] = []
        total = 0
        for info in sorted(self.segments, key=lambda info: info.size):
            total += info.size
            if total > _COMPACT_BYTES:
                break
            small.append(info)
        return sorted(small)

    async def _store(self, data: bytes) -> None:
        key = self._names.next()
        await self._storage.put(key, data)
        self.segments.append(ObjectInfo(key, len(data)))

    def _count(self, records: list[Record]) -> int:
        """Bytes of all of them."""
        size, succeeded = 0, list[Record]()
        for record in records:
            size += len(record.payload)
            if record.kind is Kind.SETTLED:
                if record.success:
                    succeeded.append(record)
                else:
                    self.failed += 1
        self.completed += len(succeeded)
        self.usage = total([self.usage, *[record.usage for record in succeeded]])
        return size


def _segment_of(records: Iterable[Record]) -> bytes:
    writer = SegmentWriter()
    for record in records:
        writer.add(record)
    return writer.finish()


def _of_failures(finals: dict[int, _Found], kept: dict[int, _Found]) -> Iterable[_Found]:
    """Last attempts of lines that failed: another attempt of the slice may have had an answer."""
    for offset, final in finals.items():
        result = kept.get(offset)
        if result is not None and result.place.kind == Kind.SETTLED and not result.place.success:
            yield final


def _outweighs(record: Located, known: Located) -> bool:
    """Results before attempts, successes before errors, the last attempt before others."""
    if record.kind != Kind.SETTLED:
        return known.kind != Kind.SETTLED
    return known.kind != Kind.SETTLED or (record.success and not known.success)
