"""Buffer the results of a slice and store them as segments, objects with many results each.

A segment is stored after 2 s, 256 results or 4 MiB. Results of calls (single requests) are stored
after 0.1 s, because clients wait for them.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from secrets import token_hex

from batchwright.activities.execution.slice_state.lease import LeaseLost, SliceLease
from batchwright.activities.execution.slice_state.resumed_slice import StoredResults
from batchwright.activities.services.call_answers import CallAnswers
from batchwright.contracts.terms import Usage
from batchwright.inference.limits.memory_budget import MemoryBudget
from batchwright.rules.results.error_tally import ErrorTally, line_error
from batchwright.rules.results.segment_format import TRAILER_BYTES, RecordKind, SegmentRecord, SegmentWriter
from batchwright.rules.results.slice_compaction import compact_segments
from batchwright.rules.results.token_usage import total_usage
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import ObjectInfo, Storage, StorageUnavailable
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.outage_log import OutageLog

logger = logging.getLogger(__name__)
FLUSH_SECONDS = 2.0
CALL_FLUSH_SECONDS = 0.1  # for lines of calls, because clients wait for the answers
FLUSH_RESULTS = 256
FLUSH_BYTES = 4 * 1024 * 1024
OVERDUE_SECONDS = 2.0
LAST_FLUSH_SECONDS = 3.0  # after the grace period; the workflow waits a little longer
_MAX_OPEN_BYTES = 4 * FLUSH_BYTES
_COMPACT_BYTES = 8 * 1024 * 1024
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.25, 4.0


class SegmentStore:
    """The part of storage to which one attempt of a slice writes segments (objects with many results)."""

    def __init__(
        self, storage: Storage, folder: str, generation: int, attempt: int, lease: SliceLease
    ) -> None:
        """Create the store for one attempt of a slice.

        Args:
            folder: storage key under which all attempts of the slice store their segments.
            lease: checked before each segment is stored. If another attempt has the slice, nothing is stored.
                Otherwise, that attempt could send lines that already have a stored result.
        """
        self.storage, self._lease = storage, lease
        self._folder, self._generation, self._attempt = folder, generation, attempt
        self._nonce, self._sequence = token_hex(4), 0
        self.known: frozenset[str] = frozenset()  # keys of the segments that existed when the attempt began

    async def put(self, data: bytes) -> ObjectInfo:
        """Store a segment under a key that no other segment has.

        Raises:
            LeaseLost: another attempt has the slice. If Temporal does not respond, the segments of a later
                attempt show this.
            StorageUnavailable: storage does not respond.
        """
        if not await self._lease.check() and await self._has_later_segments():
            self._lease.is_lost = True
            raise LeaseLost
        self._sequence += 1
        key = object_keys.segment(self._folder, self._generation, self._attempt, self._nonce, self._sequence)
        await self.storage.put(key, data)
        return ObjectInfo(key, len(data))

    async def claim(self) -> None:
        """Store an empty segment. It shows an earlier attempt without a connection to Temporal that it has
        lost the slice.

        Call this before the stored results are read: the earlier attempt then adds none to them.
        """
        await self.put(SegmentWriter().finish())

    async def _has_later_segments(self) -> bool:
        own = object_keys.attempt_segments(self._folder, self._generation, self._attempt)
        found = [info.key async for info in self.storage.list(self._folder) if info.key not in self.known]
        return any(key[: len(own)] > own for key in found)


class SegmentBuffer:
    """A buffer for the results of a slice, which are stored together as segments (objects with many results).

    A line is settled only when its result is stored.
    """

    def __init__(
        self,
        store: SegmentStore,
        budget: MemoryBudget,
        metrics: Metrics,
        answers: CallAnswers | None = None,
    ) -> None:
        """Create the buffer for one attempt of a slice.

        Args:
            budget: memory budget of the process, which includes the buffered results.
            answers: records the answers of calls once their results are stored; None if the lines are not
                calls.
        """
        self._store, self._budget, self._metrics, self._answers = store, budget, metrics, answers
        self._open: list[SegmentRecord] = []
        self._open_bytes = 0
        self.flush_overdue_at = math.inf  # monotonic time after which no more lines are sent
        self._flushing = asyncio.Lock()
        self._full = asyncio.Event()
        self._outages = OutageLog(logger, "results cannot be stored")
        self.segments: list[ObjectInfo] = []
        self.is_restored = False  # while False, the counts lack those of earlier turns
        self.completed = self.failed = 0
        self.usage = Usage()
        self.errors = ErrorTally()

    def restore(self, stored: StoredResults) -> None:
        """Start with the counts and the segments of the slice's earlier attempts.

        Call this once, before results are added.
        """
        self.segments = list(stored.segments)
        self._store.known = frozenset(info.key for info in stored.segments)
        self.completed = sum(stored.settled.values())
        self.failed = len(stored.settled) - self.completed
        self.usage = stored.usage
        self.errors = ErrorTally(stored.failures.values())
        stored.failures.clear()  # the errors are counted by now, and would only take memory
        self.is_restored = True

    def add(self, record: SegmentRecord) -> None:
        if not self._open:
            self._set_overdue(time.monotonic())
        self._open.append(record)
        self._open_bytes += len(record.payload)
        self._budget.response_bytes += len(record.payload)
        if len(self._open) >= FLUSH_RESULTS or self._open_bytes >= FLUSH_BYTES:
            self._full.set()
            if self._open_bytes >= _MAX_OPEN_BYTES:
                self.flush_overdue_at = 0.0

    @property
    def is_overdue(self) -> bool:
        """True if buffered results have waited too long to be stored, or if they take too much memory.

        While this is True, no more lines are sent.
        """
        return time.monotonic() > self.flush_overdue_at

    async def run(self, on_lost: Callable[[], None]) -> None:
        """Store the buffered results at regular intervals until cancelled.

        If storage fails, retry. While results are overdue (`is_overdue`), this attempt of the slice sends no
        lines. If another attempt has the slice, the results stay in the buffer.

        Args:
            on_lost: called if another attempt has the slice.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS if self._answers is None else CALL_FLUSH_SECONDS):
                    await self._full.wait()
            self._full.clear()
            try:
                await self.flush_with_retry(lambda: True)
            except LeaseLost:
                on_lost()

    async def flush_with_retry(self, may_retry: Callable[[], bool]) -> None:
        """Store the buffered results. If storage fails, retry while `may_retry` returns True.

        Raises:
            StorageUnavailable: storage failed and `may_retry` returned False. The results stay in the buffer.
                If they are never stored, their lines will be sent again.
            LeaseLost: another attempt has the slice. The results stay in the buffer.
        """
        wait = _MIN_RETRY_SECONDS
        while True:
            try:
                return await self.flush()
            except StorageUnavailable as error:
                self._outages.failed(error)
                if not may_retry():
                    raise
            await asyncio.sleep(wait)
            wait = min(wait * 2, _MAX_RETRY_SECONDS)

    async def flush(self) -> None:
        """Store the buffered results as one segment.

        Raises:
            StorageUnavailable: storage does not respond. The results stay in the buffer.
            LeaseLost: another attempt has the slice. The results stay in the buffer.
        """
        async with self._flushing:
            records = list(self._open)
            if not records:
                return
            segment = SegmentWriter()
            with self._metrics.flush_seconds.time():
                for record in records:
                    segment.add(record)
                self.segments.append(await self._store.put(segment.finish()))
            self._outages.succeeded()
            del self._open[: len(records)]
            size = self._count(records)
            self._open_bytes -= size
            self._budget.response_bytes -= size
            self._set_overdue(time.monotonic() if self._open else math.inf)
            if self._answers is not None:
                settled = [record.payload for record in records if record.kind is RecordKind.SETTLED]
                await self._answers.record(settled)

    def discard(self) -> None:
        """Drop the buffered results. Their lines are not settled and will be sent again."""
        self._budget.response_bytes -= self._open_bytes
        self._open, self._open_bytes = [], 0
        self._set_overdue(math.inf)

    def _set_overdue(self, waiting_since: float) -> None:
        is_much = self._open_bytes >= _MAX_OPEN_BYTES
        self.flush_overdue_at = 0.0 if is_much else waiting_since + FLUSH_SECONDS + OVERDUE_SECONDS

    async def compact(self, min_segments: int, is_lease_valid: Callable[[], bool]) -> None:
        """Merge small segments of the slice into one if there are at least `min_segments` of them.

        The old segments are deleted after the new one is stored.

        Args:
            is_lease_valid: returns False if another attempt may own the slice. The old segments are then not
                deleted.

        Raises:
            StorageUnavailable, ObjectMissing: storage does not respond, or a segment no longer exists. No
                result is lost.
            LeaseLost: another attempt has the slice.
        """
        old = self._small_segments()
        if sum(info.size > TRAILER_BYTES for info in old) < min_segments:  # the others have no records
            return
        storage = self._store.storage
        merged = compact_segments([await storage.get(info.key) for info in old])
        self.segments.append(await self._store.put(merged))
        for info in old:
            if is_lease_valid():
                await storage.delete(info.key)

    def _small_segments(self) -> list[ObjectInfo]:
        """Return the slice's smallest segments, up to 8 MiB in total.

        The segments are in the order in which they were written.
        """
        small: list[ObjectInfo] = []
        total = 0
        for info in sorted(self.segments, key=lambda info: info.size):
            total += info.size
            if total > _COMPACT_BYTES:
                break
            small.append(info)
        return sorted(small)

    def _count(self, records: list[SegmentRecord]) -> int:
        """Count the lines and tokens in these stored records. Return the size of the records in bytes."""
        size, succeeded = 0, list[SegmentRecord]()
        for record in records:
            size += len(record.payload)
            if record.kind is RecordKind.SETTLED:
                if record.success:
                    succeeded.append(record)
                else:
                    self.failed += 1
                    self.errors.add(line_error(record.payload))
        self.completed += len(succeeded)
        self.usage = total_usage([self.usage, *[record.usage for record in succeeded]])
        return size
