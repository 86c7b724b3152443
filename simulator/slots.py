"""Slots for requests that are processed at the same time, and the queue of direct callers.

While no slot is free, requests of a dispatcher are refused, because the dispatcher can send them to another
backend. Direct callers wait in a queue. A slot that becomes free goes to the direct caller that has waited
longest.
"""

from collections.abc import Callable


class Slots:
    def __init__(self, slots: int, max_waiting: int) -> None:
        """Create the slots for requests. All slots are free.

        Args:
            slots: number of requests that are processed at the same time.
            max_waiting: number of requests of direct callers that may wait.
        """
        self._slots, self._max_waiting = slots, max_waiting
        self._taken = set[object]()
        self._waiting: dict[object, Callable[[], None]] = {}  # in the order of arrival

    def enter(self, call: object, start: Callable[[], None], *, is_dispatched: bool) -> str:
        """Give a request a slot, and call `start` when it has the slot: before this method returns, or later.

        Return "" if the request is accepted. Otherwise return the reason, and never call `start`.

        Args:
            call: the request. Pass it to `leave` at its end, even if it still waits for a slot.
            is_dispatched: True for a request of a dispatcher, False for a request of a direct caller.
        """
        is_full = len(self._taken) >= self._slots
        if is_dispatched and is_full:
            return "GPU busy"
        if is_full and len(self._waiting) >= self._max_waiting:
            return "Queue full"
        if is_full:
            self._waiting[call] = start
        else:
            self._taken.add(call)
            start()
        return ""

    def leave(self, call: object) -> None:
        """Free the slot of a request. The request that has waited longest gets the slot.

        If the request is still waiting for a slot, remove it from the queue. A second call has no effect.
        """
        self._waiting.pop(call, None)
        self._taken.discard(call)
        if self._waiting and len(self._taken) < self._slots:
            first = next(iter(self._waiting))
            start = self._waiting.pop(first)
            self._taken.add(first)
            start()
