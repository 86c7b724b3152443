"""The queue of a slice's unsettled lines: lines that are due, lines that wait for a retry, quarantined lines.

A line is due if it may be sent now. Due lines are in an order that lets backends reuse their prefix caches.
"""

import heapq
import time
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

from msgspec import Struct
from pydantic import BaseModel

from batchwright.inference.limits.prefix_cache_warmup import PrefixGroups
from batchwright.inference.upstream import Upstream
from batchwright.rules.results.attempt_records import AttemptOrder


class SubmittedJob(BaseModel):
    """A job that a backend has accepted for a line.

    Attributes:
        id: the job's id at the backend; may be empty if the backend calls back.
        upstream: identifies the backend and the model.
        since: when the job was submitted, in Unix seconds.
    """

    id: str = ""
    upstream: str
    since: float


class LineAttempt(BaseModel):
    """A record of a line's attempts so far. All times are Unix seconds.

    This record is stored in segments together with the slice's results (as ATTEMPT and SUBMITTED records). So
    the next attempt of the slice (turn) knows the earlier attempts of the line.
    """

    count: int = 0
    not_before: float = 0.0  # earliest time of the next try; 0 means now
    waiting_since: float = 0.0  # time of the first failure due to missing capacity; 0 if there was none
    backend_error: str = ""  # the last error message of a backend
    sending_attempt: str = ""  # the slice attempt that was about to send the line
    crashes: int = 0  # slice attempts that crashed while they sent the line
    no_response: bool = False  # True if the last try got no response, for example in an outage
    jobs: int = 0  # number of jobs that ended without a result
    job: SubmittedJob | None = None  # the job that is running

    def supersedes(self, other: "LineAttempt") -> bool:
        """Return True if this record replaces `other`, a record of the same line that was read earlier.

        The result is False only if `other` is newer. If both are equally new, this record replaces `other`.
        """
        return self._order >= other._order

    @property
    def _order(self) -> AttemptOrder:
        return AttemptOrder(self.count, self.jobs, self.job is not None, self.crashes)


UNTRIED = LineAttempt()  # shared by all unsent lines, because a LineAttempt is never changed


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
    attempt: LineAttempt = UNTRIED
    capacity_failures: int = 0  # consecutive failures in this turn due to missing capacity
    tried_at: float | None = None  # monotonic time of the last try in this turn
    failed_upstream: Upstream | None = None  # the upstream of this turn's last failed try
    backend_verified: bool | None = False  # True if it answered a check before the send; None: unknown
    is_backend_alive: bool = False  # True if the backend answered the last try and the probe after it
    prefix_hash: int = 0  # hash of the system prompt; 0 if there is none
    prefix_group: int = 0  # the same hash; 0 also if lines are sent in the order of the file

    @property
    def due_group(self) -> int:
        """Number of the line's prefix group (lines with the same system prompt).

        It is 0 if the line has no group, or if its job already runs.
        """
        return self.prefix_group if self.prefix_group and self.attempt.job is None else 0


class PromptCost(IntEnum):
    """How much work a line causes in the prefix caches of the backends, from the least to the most.

    A slot is a place for one request at a backend. It keeps the system prompt of its last request.

    Attributes:
        NONE: a free slot of a backend has the line's system prompt. If the worker does not know the prompts
            in the slots, every line whose group is not full has this cost.
        ONE_PROMPT: a backend may have to compute the line's system prompt.
        SECOND_COPY: lines with the same system prompt are in flight. One more slot would have to compute this
            prompt. `DueLines.prompt_cost` adds a number from 0 to 1. The more lines of the group are left to
            use the slot, the smaller is this number.
    """

    NONE = 0
    ONE_PROMPT = 1
    SECOND_COPY = 2


class GroupedLine(Protocol):
    @property
    def due_group(self) -> int:
        """The line's prefix group (lines with the same system prompt); 0 if the line has no group."""
        ...


Line = TypeVar("Line", bound=GroupedLine)


class DueLines(Generic[Line]):
    """A queue of the lines that may be sent now, by prefix group (lines with the same system prompt).

    A group is *full* if its next line should wait. While the group's first line is in flight, no backend has
    the system prompt in its cache, so the group is full. Later, the group is full while `PrefixGroups.width`
    of its lines are in flight. `pop` selects the group of the next line.

    The groups, and the lines within each group, are in the order in which ingestion planned to send them.
    Lines without a group are in group 0, which is never full.
    """

    def __init__(self, prefixes: PrefixGroups) -> None:
        self._prefixes = prefixes
        self._groups: OrderedDict[int, list[Line]] = OrderedDict()  # the first line is the last element
        self._emptied: int | None = None  # the group of the last `pop`, if it has no lines left
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Line]:
        return (line for lines in self._groups.values() for line in reversed(lines))

    def append(self, line: Line) -> None:
        """Add a line behind the other lines of its group."""
        self._groups.setdefault(line.due_group, []).insert(0, line)
        self._count += 1

    def push_front(self, line: Line) -> None:
        """Add a line before the other lines of its group. The position of the group does not change."""
        group = line.due_group
        lines = self._groups.get(group)
        if lines is None:
            lines = self._groups[group] = []
            self._groups.move_to_end(group, last=False)
        lines.append(line)
        self._count += 1

    def pop(self) -> Line | None:
        """Remove and return the next line to send; None if there are no lines.

        This line is the first line of a group. If a rule selects no group, the next rule applies:

        1. A group whose prompt is in a free slot (place for one request) of a backend.
        2. The first group that is not full.
        3. If the backends have few slots: the group with the most queued lines per line in flight. One more
           slot then computes the group's prompt, and many lines use this slot.
        4. The first group.
        """
        groups = self._groups
        if self._emptied is not None and not groups[self._emptied]:
            del groups[self._emptied]
        self._emptied = None
        if not self._count:
            return None
        prefixes = self._prefixes
        group = prefixes.in_slot(groups) if prefixes.slots else None
        if group is None:
            group = next((each for each in groups if not prefixes.is_full(each)), None)
        if group is None:
            group = max(groups, key=self._lines_per_copy) if prefixes.slots else next(iter(groups))
        lines = groups[group]
        self._count -= 1
        line = lines.pop()
        if not lines:
            self._emptied = group  # deleted later, so that `push_front` finds its place
        return line

    def _lines_per_copy(self, group: int) -> float:
        return len(self._groups[group]) / (self._prefixes.count_in_flight(group) or 1)

    def count_outside_full_groups(self) -> float:
        """Return how many of the lines can be sent before every group is full."""
        until_full = self._prefixes.lines_until_full
        return sum(min(len(lines), until_full(group)) for group, lines in self._groups.items() if lines)

    def slot_wait_seconds(self, line: Line) -> float:
        """Return how many seconds `line` should wait for a slot with the line's prompt; 0 for no wait.

        Call this only for a line that `pop` has returned, and only if the group of this line is full.
        """
        group = line.due_group
        return self._prefixes.slot_wait_seconds(group, 1 + len(self._groups.get(group, ())))

    def prompt_cost(self) -> float:
        """Return how much work the next line would cause in the backends' prefix caches (`PromptCost`).

        The next line is the line that `pop` would return. It stays in the queue.
        """
        prefixes, groups = self._prefixes, {group for group, lines in self._groups.items() if lines}
        are_full = all(prefixes.is_full(group) for group in groups)
        if prefixes.in_slot(groups) is not None or not (are_full or prefixes.slots):
            return PromptCost.NONE
        if not (are_full and prefixes.slots):
            return PromptCost.ONE_PROMPT
        return PromptCost.SECOND_COPY + 1 / (1 + max(map(self._lines_per_copy, groups), default=0))


class LineQueue:
    """The queue of a slice's lines that have no result yet.

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
            if line.attempt is UNTRIED:
                self._ready.append(line)
            else:
                self.requeue(line)

    @property
    def due(self) -> int:
        """Number of lines that may be sent now."""
        return len(self._ready)

    @property
    def due_outside_full_groups(self) -> float:
        """Number of due lines that can be sent before every prefix group is full.

        A prefix group consists of the lines with the same system prompt. A group is full while its next line
        should wait.
        """
        return self._ready.count_outside_full_groups()

    def requeue(self, line: SliceLine) -> None:
        """Put a line without a result back into the queue.

        A line that was in flight during a crash goes to the quarantined lines. Every other line that is due
        goes behind the other due lines of its prefix group (lines with the same system prompt). A line that
        is not due waits until its `not_before`.
        """
        if line.attempt.crashes:
            self._quarantined.append(line)
        elif line.attempt.not_before <= time.time():
            self._ready.append(line)
        else:
            heapq.heappush(self._later, (line.attempt.not_before, line.offset, line))

    def next(self) -> SliceLine | None:
        """Remove and return the next line that may be sent now; None if there is none.

        Quarantined lines (in flight when a worker crashed) are never returned. Lines whose wait for a retry
        has ended are first added to the due lines. A line that already runs as a job goes before the lines
        without a prefix group. Any other line goes behind the lines with the same system prompt.
        """
        while self._later and self._later[0][0] <= time.time():
            line = heapq.heappop(self._later)[2]
            if line.attempt.job is None:
                self._ready.append(line)
            else:
                self._ready.push_front(line)
        return self._ready.pop()

    def reselect(self, line: SliceLine) -> SliceLine:
        """Put back `line`, which `next` has returned earlier, and return the line that is best to send now.

        Since `next` was called, other groups (lines with the same system prompt) may have become full. If
        `line` has no group, has a running job, or may have crashed a worker, `line` itself is returned.
        """
        if not line.prefix_group or line.attempt.job is not None or line.attempt.crashes:
            return line
        self._ready.push_front(line)
        return self._ready.pop() or line

    def prompt_cost(self, line: SliceLine) -> float:
        """Return how much work `line` causes in the backends' prefix caches, as a `PromptCost`.

        Args:
            line: a line that `next` has returned. If `reselect` would replace it by a line that costs less,
                the result is the cost of that other line.
        """
        prefixes, group = self._prefixes, line.due_group
        is_full = prefixes.is_full(group)
        if prefixes.in_slot((group,)) is not None or not (is_full or prefixes.slots):
            return PromptCost.NONE
        rest = self._ready.prompt_cost()
        return rest if is_full else min(PromptCost.ONE_PROMPT, rest)

    def slot_wait_seconds(self, line: SliceLine) -> float:
        """Return how many seconds `line` should wait for a slot with the line's system prompt; 0 for no wait.

        A slot is a backend's place for one request, and keeps the system prompt of its last request. Call
        this only for a line that `next` has returned. The line's prefix group (lines with the same system
        prompt) must be full: `DueLines` explains when a group is full.
        """
        return self._ready.slot_wait_seconds(line)

    def pop_quarantined(self) -> SliceLine | None:
        """Remove and return the next quarantined line that may be sent now; None if there is none.

        A line is quarantined if it may have crashed a worker. A slice attempt counts as a crash of the line
        if the attempt crashed while the line was in flight or about to be sent. The line with the fewest
        crashes is returned.
        """
        ready = [line for line in self._quarantined if line.attempt.not_before <= time.time()]
        found = min(ready, key=lambda line: (line.attempt.crashes, line.offset), default=None)
        if found is not None:
            self._quarantined.remove(found)
        return found

    def quarantine(self, markers: Container[str]) -> list[SliceLine]:
        """Quarantine and return the lines that were in flight, or about to be sent, when an attempt crashed.

        Each line's number of crashes is increased by one. `markers` are the texts that name the crashed
        attempts in the lines' records.
        """
        lines = [*self._ready, *(line for _, _, line in self._later), *self._quarantined]
        found = [line for line in lines if line.attempt.sending_attempt in markers]
        for line in found:
            changes = {"sending_attempt": "", "crashes": line.attempt.crashes + 1}
            line.attempt = line.attempt.model_copy(update=changes)
        self._ready, self._later, self._quarantined = DueLines[SliceLine](self._prefixes), [], []
        for line in lines:
            self.requeue(line)
        return found

    def settle(self, line: SliceLine) -> None:
        """Count a line as settled, because it has its final result. Free the memory of the line's JSON.

        The line must already be removed from the queue.
        """
        self.unsettled -= 1
        self.bytes -= len(line.data)
        line.data = b""

    def settle_quarantined(self, line: SliceLine) -> None:
        """Remove a quarantined line from the queue, and count it as settled.

        A line is quarantined if it was in flight when a worker crashed. After several crashes, the line gets
        an error as its result and is not sent again. Call this after the error was added to the results.
        """
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
        """Put back a line that was taken from the queue and not sent.

        A line that was in flight when a worker crashed goes back to the quarantined lines. Any other line
        goes to the front of its group, before the other lines with the same system prompt.
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
