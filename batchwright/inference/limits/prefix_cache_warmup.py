"""Decides which lines should wait, so that a backend computes each system prompt only once.

Backends keep system prompts in their prefix caches. The lines of one model with the same system prompt are a
group. Until a backend has responded to one line of a group, it computes the system prompt again for each
line. Therefore the first line of a group is sent alone. While this line has no response, lines of other
groups are sent.
"""

import math
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Sequence
from statistics import median

_WARM_SECONDS = 60.0  # so long after the last success, a cache may have evicted the prompt
_MAX_WARM = 10_000  # groups that are remembered as warm
# A backend that takes few requests at once often keeps one prompt for each of them (llama.cpp, Ollama). Lines
# of so many groups are in flight at once there, and in other caches so many prompts have room.
_GROUPS_AT_ONCE = 8
_MAX_SLOT_WAIT_SECONDS = (
    1.0  # for so long, a slot may be idle instead of computing a prompt that another slot has
)
_MIN_DURATIONS, _MAX_DURATIONS = 4, 32  # of requests, to estimate how long computing a prompt takes


class PrefixGroups:
    """The lines of one model, grouped by system prompt, so that backends compute each prompt only once.

    A group consists of the lines with the same system prompt. The number of a group is the hash of the system
    prompt, and is never 0. All senders of the model's lines in this process share one `PrefixGroups` object.

    - *Cold* group: no line of the group has succeeded yet. The group is full if one line is in flight.
    - *Warm* group: a line of the group has succeeded. The group is full if `width` lines are in flight.

    A line of a full group should wait if another line can be sent instead. If a warm group has no lines in
    flight, the group is cold again one minute after its last success. A failed line does not make a group
    warm, because the backend may not have computed the prompt for this line.

    Attributes:
        width: number of lines of a warm group that may be in flight; infinity for no limit.
        slots: number of slots of the model's backends together; 0 if there are 16 or more slots, or if the
            number is not known. A slot is a place for one request. If there are fewer than 16 slots, each
            slot may keep only the prompt of its last request.
        max_in_flight: returns how many lines of the model this process may have in flight now. Other
            processes may use the slots beyond this number. By default, there is no limit.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.width, self.slots = math.inf, 0
        self.max_in_flight: Callable[[], int] = lambda: sys.maxsize
        self._clock = clock
        self._running = 0  # lines in flight, including lines without a group
        self._in_flight: dict[int, int] = {}  # by group, without groups that have none
        self._warm: OrderedDict[int, float] = OrderedDict()  # last success by group, oldest first
        self._free_slots: list[int] = []  # group whose prompt is in each free slot, the oldest first
        # Seconds of the last requests whose group was cold, and of the last ones whose group was warm.
        self._cold_seconds = deque[float](maxlen=_MAX_DURATIONS)
        self._warm_seconds = deque[float](maxlen=_MAX_DURATIONS)

    def set_width(self, in_flight: Sequence[int | None], *, is_affine: bool) -> None:
        """Set the attributes `width` and `slots` of this object, for a changed list of backends.

        Args:
            in_flight: for each backend, the configured number of requests that it processes at the same time;
                None if no number is configured. If one number is None, or if there is no backend, `width`
                becomes infinity and `slots` becomes 0. The reason is that a backend without a number may have
                a queue, in which lines of one group should follow each other.
            is_affine: True if all lines of a group go to the same backend.
        """
        stated = [number for number in in_flight if number is not None]
        if not stated or len(stated) < len(in_flight):
            self.width, self.slots = math.inf, 0
        else:
            self.width = max(1, (min(stated) if is_affine else sum(stated)) // _GROUPS_AT_ONCE)
            self.slots = sum(stated) if sum(stated) < 2 * _GROUPS_AT_ONCE else 0
        self._limit_free_slots(self.slots)

    def is_full(self, group: int) -> bool:
        """Return True if lines of other groups should be sent before the group's next line.

        A group consists of the lines with the same system prompt. Until a backend has the system prompt in
        its cache, the group is full if one line is in flight. After that, the group is full if `width` lines
        are in flight. If `group` is 0, the line has no group, and the result is False.
        """
        in_flight = self._in_flight.get(group)
        return in_flight is not None and (in_flight >= self.width or group not in self._warm)

    def count_in_flight(self, group: int) -> int:
        """Return how many lines of the group are in flight."""
        return self._in_flight.get(group, 0)

    def lines_until_full(self, group: int) -> float:
        """Return how many more lines of the group can be sent before the group is full."""
        if not group:
            return math.inf
        most = self.width if group in self._warm else 1
        return max(0, most - self._in_flight.get(group, 0))

    def slot_wait_seconds(self, group: int, lines_left: int) -> float:
        """Return the maximum seconds that a line of a full group should wait for a slot with its prompt.

        A line that does not wait uses an additional slot, which must first compute the prompt. In these
        cases, an additional slot is better than waiting, and the result is 0:

        - The time to compute the prompt is not known, or too short to measure.
        - The additional slot saves at least as much time for the remaining lines of the group as the slot
          needs to compute the prompt.
        - Without the additional slot, the remaining lines need at least one second.

        In all other cases, the result is between 0 and 1.

        Args:
            lines_left: number of lines of the group that are not sent yet.
        """
        cold, warm = sorted(self._cold_seconds), self._warm_seconds
        if min(len(cold), len(warm)) < _MIN_DURATIONS:
            return 0.0
        usual = median(warm)
        # Three of four requests with a new prompt took longer by at least this time. So responses that were
        # long by chance, or because a model was loaded, hardly count.
        copy = cold[len(cold) // 4] - usual
        slots = self._in_flight.get(group, 0) or 1
        # With a copy, the lines end after (lines_left * usual + copy) / (slots + 1) seconds. This is earlier
        # by at least `copy` seconds if `without` is at least `most`.
        without, most = lines_left * usual / slots, min((slots + 2) * copy, _MAX_SLOT_WAIT_SECONDS)
        return 0.0 if without >= most else most

    @property
    def has_several(self) -> bool:
        """True if at least two groups are in use.

        A group is in use if one of its lines is in flight, or if a free slot has its prompt. A slot is a
        backend's place for one request. A free slot keeps the prompt of its last request.
        """
        groups = {*self._in_flight, *self._free_slots}
        return len(groups - {0}) > 1

    @property
    def must_keep_slots(self) -> bool:
        """True if a line with a new system prompt should wait.

        The new prompt could replace a prompt that the next lines need. Both conditions must be met:

        - The backends have few slots. A slot is a place for one request, and keeps only the prompt of its
          last request.
        - A line of a warm group is in flight: a backend has the group's prompt in its cache. More lines of
          this group probably follow.
        """
        return bool(self.slots) and any(group in self._warm for group in self._in_flight)

    def in_slot(self, groups: Container[int]) -> int | None:
        """Return the group in `groups` whose prompt is in a free slot; None if there is no such group.

        A slot is a backend's place for one request. A free slot keeps the prompt of its last request, so the
        backend does not compute this prompt again. If several groups have their prompts in free slots, return
        the group whose slot was used last. Requests of other clients replace the oldest prompts first.
        """
        return next((each for each in reversed(self._free_slots) if each in groups), None)

    def record_sent(self, group: int) -> None:
        """Record that a line of the group was sent."""
        self._running += 1
        if self._free_slots:
            self._free_slots.remove(group if group in self._free_slots else self._free_slots[0])
        if not group:
            return
        in_flight = self._in_flight.get(group, 0)
        if not in_flight and self._clock() - self._warm.get(group, math.inf) > _WARM_SECONDS:
            del self._warm[group]
        self._in_flight[group] = in_flight + 1

    def record_success(self, group: int, seconds: float = 0.0) -> None:
        """Record that a line of the group succeeded. A backend now has the group's prompt in its cache.

        `seconds` is the duration of the request; 0 if it is not known.
        """
        if group:
            if seconds:
                (self._warm_seconds if group in self._warm else self._cold_seconds).append(seconds)
            self._warm[group] = self._clock()
            self._warm.move_to_end(group)
            if len(self._warm) > _MAX_WARM:
                self._warm.popitem(last=False)

    def record_end(self, group: int) -> None:
        """Record that a line of the group is no longer in flight, so that another line may be sent."""
        self._running -= 1
        if self.slots:
            self._free_slots.append(group if group in self._warm else 0)
            self._limit_free_slots(min(self.slots, self.max_in_flight()))
        if group:
            in_flight = self._in_flight[group] - 1
            if in_flight:
                self._in_flight[group] = in_flight
            else:
                del self._in_flight[group]

    def _limit_free_slots(self, slots: int) -> None:
        """Drop the oldest free slots until lines in flight plus free slots are not more than `slots`."""
        free = max(0, slots - self._running)
        del self._free_slots[: max(0, len(self._free_slots) - free)]
