"""What a slice still has to do: its lines, less what its stored segments settle."""

import heapq
import time
from collections import deque
from dataclasses import dataclass, field

from msgspec import Struct
from pydantic import BaseModel

from batchwright.contracts.execution import SliceRequest
from batchwright.contracts.openai import Usage
from batchwright.inference.routes import Lane
from batchwright.rules import keys
from batchwright.rules.plan import (
    ENTRY_BYTES,
    SLICE_BYTES,
    PlanDamaged,
    SliceRecord,
    unpack_slice,
    walk_entries,
)
from batchwright.rules.segments import Kind, Located, locate_records
from batchwright.storage.base import ObjectInfo, ObjectMissing, Storage, StorageUnavailable

_LISTINGS = 3


class Job(BaseModel):
    """A job that a backend has taken. `id` may be empty where it calls back; `since` in Unix seconds.

    `lane` is the key of the model at the backend that runs it.
    """

    id: str = ""
    lane: str
    since: float


class Attempt(BaseModel):
    """The payload of an attempt or a submitted record. `not_before`, `waiting_since`: Unix seconds, 0: none.

    `noted_by` names the attempt that was about to ask the line, `crashes` counts those that died of it.
    `unanswered`: its last try ended without any answer, and may have been an outage.
    `job` is the one that runs for the line, `jobs` counts those that ended without an answer.
    """

    count: int = 0
    not_before: float = 0.0
    waiting_since: float = 0.0  # the first refusal for want of capacity
    error: str = ""
    noted_by: str = ""
    crashes: int = 0
    unanswered: bool = False
    jobs: int = 0
    job: Job | None = None

    def outdates(self, other: "Attempt") -> bool:
        """Whether it tells of no earlier moment of the same line."""
        return (self.count, self.jobs) >= (other.count, other.jobs)


_UNTRIED = Attempt()  # of every line that was never asked: attempts are replaced, not changed


class Line(Struct, eq=False):
    """A line in the slice's shard range; `offset` is its place in the input and its identity."""

    offset: int
    start: int
    length: int
    attempt: Attempt = _UNTRIED
    refusals: int = 0  # capacity failures in a row, of this turn
    tried_at: float | None = None  # monotonic, of this turn
    failed_at: Lane | None = None  # the backend that did not settle it last, in this turn
    vouched: bool | None = False  # the backend answered right before the line was sent; None: it never tells
    prefix_hash: int = 0  # of its system prompt; 0: none


class SliceWork:
    """The lines not settled yet: ready ones in plan order, later ones by their time; suspects apart."""

    def __init__(self, lines: list[Line], shard: bytes) -> None:
        self._shard = shard
        self._ready: deque[Line] = deque()
        self._later: list[tuple[float, int, Line]] = []
        self._suspects: list[Line] = []
        self.unsettled = len(lines)  # those being asked included
        for line in lines:
            if line.attempt is _UNTRIED:
                self._ready.append(line)
            else:
                self.put_back(line)

    def bytes_of(self, line: Line) -> bytes:
        return self._shard[line.start : line.start + line.length]

    def put_back(self, line: Line) -> None:
        """At once, or when its time has come."""
        if line.attempt.crashes:
            self._suspects.append(line)
        elif line.attempt.not_before <= time.time():
            self._ready.append(line)
        else:
            heapq.heappush(self._later, (line.attempt.not_before, line.offset, line))

    def next(self) -> Line | None:
        """Lines whose jobs run come first: they take no more of a backend than it has given already."""
        while self._later and self._later[0][0] <= time.time():
            line = heapq.heappop(self._later)[2]
            if line.attempt.job is None:
                self._ready.append(line)
            else:
                self._ready.appendleft(line)
        return self._ready.popleft() if self._ready else None

    def next_suspect(self) -> Line | None:
        """Of those whose time has come, the one that fewest workers died of."""
        ready = [line for line in self._suspects if line.attempt.not_before <= time.time()]
        found = min(ready, key=lambda line: (line.attempt.crashes, line.offset), default=None)
        if found is not None:
            self._suspects.remove(found)
        return found

    def suspect(self, noted_by: str) -> list[Line]:
        """The lines that the attempt of that note was asking when it died: one crash more each."""
        lines = [*self._ready, *(line for _, _, line in self._later), *self._suspects]
        found = [line for line in lines if line.attempt.noted_by == noted_by]
        for line in found:
            changes = {"noted_by": "", "crashes": line.attempt.crashes + 1}
            line.attempt = line.attempt.model_copy(update=changes)
        self._ready, self._later, self._suspects = deque(), [], []
        for line in lines:
            self.put_back(line)
        return found

    def drop(self, line: Line) -> None:
        """A suspect that is settled without being asked."""
        self._suspects.remove(line)
        self.unsettled -= 1

    def return_first(self, line: Line) -> None:
        """One that was not sent, though it was its turn."""
        if line.attempt.crashes:
            self._suspects.append(line)
        else:
            self._ready.appendleft(line)

    def wait(self) -> float:
        """Seconds until some line is ready."""
        times = [line.attempt.not_before for line in self._suspects]
        if self._later:
            times.append(self._later[0][0])
        if self._ready or not times:
            return 0.0
        return max(0.0, min(times) - time.time())


@dataclass
class Stored:
    """What earlier turns left: settled lines, attempts, and the segments that hold them."""

    segments: list[ObjectInfo] = field(default_factory=list[ObjectInfo])
    settled: dict[int, bool] = field(default_factory=dict[int, bool])  # offset: success
    attempts: dict[int, Attempt] = field(default_factory=dict[int, Attempt])
    usage: Usage = field(default_factory=Usage)

    def add(self, found: Located, data: bytes) -> None:
        if found.kind in (Kind.ATTEMPT, Kind.SUBMITTED):
            attempt = Attempt.model_validate_json(data[found.position : found.position + found.length])
            known = self.attempts.get(found.offset)
            if known is None or attempt.outdates(known):
                self.attempts[found.offset] = attempt
        elif found.kind == Kind.SETTLED:
            known = self.settled.get(found.offset)
            if known is None or (found.success and not known):
                i, c, o, r = found.tokens
                self.usage += Usage(input_tokens=i, cached_tokens=c, output_tokens=o, reasoning_tokens=r)
                self.settled[found.offset] = found.success


async def read_record(storage: Storage, request: SliceRequest) -> SliceRecord:
    """Raises PlanDamaged, ObjectMissing, StorageUnavailable."""
    table = keys.slice_table(request.prefix, request.safe)
    return unpack_slice(await storage.get(table, request.number * SLICE_BYTES, SLICE_BYTES), request.number)


async def read_stored(storage: Storage, folder: str) -> Stored:
    """The listing is the truth. Raises SegmentDamaged, StorageUnavailable.

    A segment may go between listing and reading: an attempt that lost the slice was just compacting.
    """
    for _ in range(_LISTINGS):
        try:
            return await _read_listed(storage, folder)
        except ObjectMissing:
            continue
    raise StorageUnavailable(f"The segments below {folder!r} keep changing while they are read.")


async def _read_listed(storage: Storage, folder: str) -> Stored:
    stored = Stored(segments=[info async for info in storage.list(folder)])
    for info in stored.segments:
        data = await storage.get(info.key)
        for found in locate_records(data):
            stored.add(found, data)
    return stored


async def read_work(
    storage: Storage, request: SliceRequest, record: SliceRecord, stored: Stored
) -> SliceWork:
    """Plan entries and shard range in one ranged read each. Raises PlanDamaged where they disagree."""
    plan = keys.plan(request.prefix, request.safe)
    entries = await storage.get(plan, record.first_entry * ENTRY_BYTES, record.entries * ENTRY_BYTES)
    shard = keys.shard(request.prefix, request.safe)
    data = await storage.get(shard, record.shard_offset, record.shard_bytes)
    return SliceWork(_open_lines(request, record, entries, data, stored), data)


def _open_lines(
    request: SliceRequest, record: SliceRecord, entries: bytes, data: bytes, stored: Stored
) -> list[Line]:
    planned = list(walk_entries(entries))
    if len(data) != record.shard_bytes or not len(planned) == record.entries == data.count(b"\n"):
        raise PlanDamaged(
            f"{request.batch_id}: plan and shard of {request.model!r} disagree at slice {record.number}"
        )
    lines: list[Line] = []
    start = 0
    for offset, _, prefix_hash in planned:
        end = data.index(b"\n", start)
        if offset not in stored.settled:
            attempt = stored.attempts.get(offset, _UNTRIED)
            lines.append(Line(offset, start, end - start, attempt, prefix_hash=prefix_hash))
        start = end + 1
    if stored.attempts:
        lines.sort(key=lambda line: line.attempt.job is None)  # what runs already comes first
    return lines
