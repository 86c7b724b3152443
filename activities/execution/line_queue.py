"""The queue of a slice's unsettled lines, and the functions that read these lines from storage."""

import heapq
import time
from collections.abc import Iterable

from msgspec import Struct

from batchwright.activities.execution.due_lines import DueLines
from batchwright.activities.execution.earlier_results import LineAttempt, StoredResults
from batchwright.contracts.temporal_payloads.execution import SliceRequest
from batchwright.inference.limits.prefix_cache_warmup import PrefixGroups
from batchwright.inference.upstream import Upstream
from batchwright.rules import ids, object_keys
from batchwright.rules.planning.plan_format import (
    ENTRY_BYTES,
    SLICE_BYTES,
    PlanDamaged,
    SliceRecord,
    unpack_slice,
    walk_entries,
)
from batchwright.storage.base import Storage

_UNTRIED = LineAttempt()  # shared by all unsent lines, because a LineAttempt is never changed


class SliceLine(Struct, eq=False):
    """A line of a slice, with the record of its attempts.

    Attributes:
        offset: byte position in the input file, which also identifies the line.
        data: the line's JSON, without the newline; empty when no longer needed.
        request_id: id of the line's request, the same at each attempt.
    """

    offset: int
    data: bytes
    request_id: str
    attempt: LineAttempt = _UNTRIED
    capacity_failures: int = 0  # consecutive failures in this turn due to missing capacity
    tried_at: float | None = None  # monotonic time of the last try in this turn
    failed_upstream: Upstream | None = None  # the upstream of this turn's last failed try
    backend_verified: bool | None = False  # True if it answered a check before the send; None: unknown
    is_backend_alive: bool = False  # True if the backend answered the last try and the probe after it
    prefix_hash: int = 0  # hash of the system prompt; 0 if there is none
    prefix_group: int = 0  # the same hash; 0 also if lines are sent in the order of the file

    @property
    def due_group(self) -> int:
        """Prefix group of the line (lines with the same system prompt), by which `DueLines` orders lines.

        If the line's job already runs at a backend, the line has no group (0).
        """
        return self.prefix_group if self.prefix_group and self.attempt.job is None else 0


class LineQueue:
    """Queue of a slice's lines that have no result yet.

    Lines that may be sent now are in the order of `DueLines`. Lines that wait for a retry are sorted by the
    time of the retry. Quarantined lines, which may have crashed a worker, are in a separate list.

    Attributes:
        unsettled: number of lines without a result, including lines in flight.
        bytes: memory used by the JSON of the lines without a result, in bytes.
    """

    def __init__(self, lines: list[SliceLine], prefixes: PrefixGroups) -> None:
        self._prefixes = prefixes
        self._ready = DueLines[SliceLine](prefixes)
        self._later: list[tuple[float, int, SliceLine]] = []
        self._quarantined: list[SliceLine] = []
        self.unsettled = len(lines)
        self.bytes = sum(len(line.data) for line in lines)
        for line in lines:
            if line.attempt is _UNTRIED:
                self._ready.append(line)
            else:
                self.requeue(line)

    @property
    def due(self) -> int:
        """Number of lines that may be sent now."""
        return len(self._ready)

    @property
    def preferred(self) -> float:
        """Number of lines that could be sent now before all prefix groups (same system prompt) are full."""
        return self._ready.count_preferred()

    def requeue(self, line: SliceLine) -> None:
        """Put a line without a result back into the queue.

        If the line is due, it goes behind the other due lines of its prefix group. If it is not due, it waits
        until its `not_before`. A quarantined line, which was in flight during a crash, goes to the
        quarantined lines.
        """
        if line.attempt.crashes:
            self._quarantined.append(line)
        elif line.attempt.not_before <= time.time():
            self._ready.append(line)
        else:
            heapq.heappush(self._later, (line.attempt.not_before, line.offset, line))

    def next(self) -> SliceLine | None:
        """Remove and return the next line that may be sent now; None if there is none.

        Quarantined lines are not returned. When a line's wait ends, the line goes to the end of its prefix
        group. But a line with a running job goes to the front, because polling its job is cheap.
        """
        while self._later and self._later[0][0] <= time.time():
            line = heapq.heappop(self._later)[2]
            if line.attempt.job is None:
                self._ready.append(line)
            else:
                self._ready.push_front(line)
        return self._ready.pop()

    def reselect(self, line: SliceLine) -> SliceLine:
        """Choose again which line to send, in place of a line that `next` returned earlier.

        The result is usually `line` itself. It is another line if lines with the same system prompt should
        now wait for a response.
        """
        if not line.prefix_group or line.attempt.job is not None or line.attempt.crashes:
            return line
        self._ready.push_front(line)
        return self._ready.pop() or line

    def should_wait(self, line: SliceLine) -> bool:
        """Return True if `line` and all lines that are due belong to full prefix groups.

        `line` should then wait for the response to an earlier line with the same system prompt.

        Args:
            line: a line that `next` has returned.
        """
        return self._prefixes.is_full(line.due_group) and self._ready.only_full_groups()

    def pop_quarantined(self) -> SliceLine | None:
        """Remove and return a quarantined line that is due: the line with the fewest crashes.

        Return None if no quarantined line is due.
        """
        ready = [line for line in self._quarantined if line.attempt.not_before <= time.time()]
        found = min(ready, key=lambda line: (line.attempt.crashes, line.offset), default=None)
        if found is not None:
            self._quarantined.remove(found)
        return found

    def quarantine(self, marker: str) -> list[SliceLine]:
        """Quarantine the lines that a crashed attempt was about to send or had in flight. Return these lines.

        The number of crashes of each line is increased by one. `marker` is the text that names the crashed
        attempt in the lines' records.
        """
        lines = [*self._ready, *(line for _, _, line in self._later), *self._quarantined]
        found = [line for line in lines if line.attempt.sending_attempt == marker]
        for line in found:
            changes = {"sending_attempt": "", "crashes": line.attempt.crashes + 1}
            line.attempt = line.attempt.model_copy(update=changes)
        self._ready, self._later, self._quarantined = DueLines[SliceLine](self._prefixes), [], []
        for line in lines:
            self.requeue(line)
        return found

    def settle(self, line: SliceLine) -> None:
        """Count the line as settled, and free the memory of its JSON. The line must not be in the queue."""
        self.unsettled -= 1
        self.bytes -= len(line.data)
        line.data = b""

    def discard(self, line: SliceLine) -> None:
        """Remove a line from the quarantined lines, because it got a result without being sent."""
        self._quarantined.remove(line)
        self.settle(line)

    def free_lines(self, in_flight: Iterable[SliceLine]) -> None:
        """Free the memory of the JSON of all lines in the queue and in `in_flight`.

        No line can be sent afterwards.
        """
        for line in (*self._ready, *(line for _, _, line in self._later), *self._quarantined, *in_flight):
            line.data = b""
        self.bytes = 0

    def push_front(self, line: SliceLine) -> None:
        """Put an unsent line back at the front of the queue, so that `next` returns it again.

        A quarantined line goes back to the quarantined lines.
        """
        if line.attempt.crashes:
            self._quarantined.append(line)
        else:
            self._ready.push_front(line)

    def wait(self) -> float:
        """Return the seconds until the next line is due; 0 if a line is due now or the queue is empty."""
        times = [line.attempt.not_before for line in self._quarantined]
        if self._later:
            times.append(self._later[0][0])
        if self._ready or not times:
            return 0.0
        return max(0.0, min(times) - time.time())


async def read_slice_record(storage: Storage, request: SliceRequest) -> SliceRecord:
    """Read the record of a slice: which part of the plan and of the shard belongs to it.

    The plan lists the model's lines in dispatch order. The shard holds their JSON.

    Raises:
        PlanDamaged: the model's table of slices has no valid record of the slice.
        ObjectMissing, StorageUnavailable: the table cannot be read.
    """
    table = object_keys.slice_table(request.ingest_prefix, request.safe_model)
    return unpack_slice(await storage.get(table, request.number * SLICE_BYTES, SLICE_BYTES), request.number)


async def read_line_queue(
    storage: Storage,
    request: SliceRequest,
    record: SliceRecord,
    stored: StoredResults,
    prefixes: PrefixGroups,
    *,
    is_grouped: bool,
) -> LineQueue:
    """Read those lines of the slice from storage that have no result yet. Return them as a queue.

    This takes two requests to storage: the first reads the slice's part of the plan, the second reads the
    slice's lines in the shard.

    Args:
        prefixes: the model's prefix groups.
        is_grouped: True to send lines by prefix group (lines with the same system prompt); False to send them
            in the order of the plan.

    Raises:
        PlanDamaged: plan and shard do not match.
        ObjectMissing, StorageUnavailable: plan or shard cannot be read.
    """
    plan = object_keys.plan(request.ingest_prefix, request.safe_model)
    entries = await storage.get(plan, record.first_entry * ENTRY_BYTES, record.entries * ENTRY_BYTES)
    shard = object_keys.shard(request.ingest_prefix, request.safe_model)
    data = await storage.get(shard, record.shard_offset, record.shard_bytes)
    lines = _unsettled_lines(request, record, entries, data, stored)
    if is_grouped:
        for line in lines:
            line.prefix_group = line.prefix_hash
    return LineQueue(lines, prefixes)


def _unsettled_lines(
    request: SliceRequest, record: SliceRecord, entries: bytes, data: bytes, stored: StoredResults
) -> list[SliceLine]:
    planned = list(walk_entries(entries))
    if len(data) != record.shard_bytes or not len(planned) == record.entries == data.count(b"\n"):
        raise PlanDamaged(
            f"{request.batch_id}: plan and shard of {request.model!r} disagree at slice {record.number}"
        )
    request_ids, lines = ids.RequestIds(request.batch_id), list[SliceLine]()
    start = 0
    for offset, _, prefix_hash in planned:
        end = data.index(b"\n", start)
        if offset not in stored.settled:
            attempt = stored.attempts.get(offset, _UNTRIED)
            request_id = request_ids.of(offset)
            lines.append(SliceLine(offset, data[start:end], request_id, attempt, prefix_hash=prefix_hash))
        start = end + 1
    if stored.attempts:
        lines.sort(key=lambda line: line.attempt.job is None)  # running jobs come first
    return lines
