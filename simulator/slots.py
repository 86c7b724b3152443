"""Limits how many requests are processed at the same time. A slot is a place for one such request.

Requests come from a dispatcher, such as a Batchwright worker, or from direct callers. If no slot is free, a
dispatcher's request is refused, because the dispatcher can send it to another backend. A direct caller's
request waits in the queue. A slot that becomes free goes to the request that has waited longest.
"""

from collections.abc import Callable


class Slots:
    def __init__(self, slots: int, max_waiting: int) -> None:
        """Create the slots for requests. All slots are free.

        Args:
            slots: number of requests that are processed at the same time.
            max_waiting: maximum number of requests in the queue. Only requests of direct callers (clients
                that are not a dispatcher) wait in the queue. If no slot is free, a dispatcher's request is
                refused.
        """
        self._slots, self._max_waiting = slots, max_waiting
        self._taken = set[object]()
        self._waiting: dict[object, Callable[[], None]] = {}  # in the order of arrival

    def enter(self, call: object, start: Callable[[], None], *, is_dispatched: bool) -> str:
        """Try to get a slot for a call. A call is one request to the simulated backend.

        - If a slot is free, call `start`, and return "".
        - If no slot is free and a direct caller has sent the call, put the call in the queue, and return "".
          When the call gets a slot, `start` is called.
        - If no slot is free and a dispatcher has sent the call, or if the queue is full, refuse the call and
          return the reason. `start` is never called.

        Args:
            call: any object that identifies the call. At the end of the call, pass this object to `leave`,
                even if the call is still in the queue.
            is_dispatched: True if the call comes from a dispatcher, such as a Batchwright worker; False if
                the call comes from a direct caller.
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
        """End `call`: free its slot, or remove it from the queue if it still waits for a slot.

        The call that has waited longest gets the free slot. A second call of this method for the same `call`
        does nothing.
        """
        self._waiting.pop(call, None)
        self._taken.discard(call)
        if self._waiting and len(self._taken) < self._slots:
            first = next(iter(self._waiting))
            start = self._waiting.pop(first)
            self._taken.add(first)
            start()
