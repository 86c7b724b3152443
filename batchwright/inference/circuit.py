"""One model's circuit: opens when its backend takes nothing, lets one trial through, closes on its answer."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_LONGEST_ASKED_PAUSE = 60.0
_SOON = 3.0  # no longer than a slice keeps its slot without sending
# A trial may never be answered though the backend is long back: after so long another one goes out, the next
# after twice as long.
_FIRST_TRIAL, _LONGEST_TRIAL = 30.0, 120.0


class Try(Struct, eq=False):
    """One request sent under a circuit; how it ended is told once."""

    sent_at: float
    is_trial: bool
    is_told: bool = False


@dataclass
class Circuit:
    """Seconds are the clock's. `failures_to_open` capacity failures in a row open it, a refusal at once.

    A backend that refuses some of many requests does so long before it answers the others: while those are
    under way, as many failures in a row are needed as half of them. Requests sent before it opened neither
    close it nor prolong its pause.
    """

    failures_to_open: int
    clock: Callable[[], float] = time.monotonic
    reason: str = ""
    opened_at: float = 0.0
    is_open: bool = field(default=False, init=False)  # asked many times a request
    _failures: int = 0
    _pause: float = 0.0  # 0: closed
    _retry_at: float = 0.0
    _trial: Try | None = None  # the last one, while it is under way
    _trial_seconds: float = _FIRST_TRIAL  # after which it is not waited for any more
    _under_way: set[Try] = field(default_factory=set[Try])
    _normal_at: float | None = None
    _suspects: set[str] = field(default_factory=set[str])

    @property
    def open_seconds(self) -> float:
        return self.clock() - self.opened_at if self.is_open else 0.0

    def wait(self) -> float:
        """Seconds until a request may be tried; 0: now."""
        if not self._pause:
            return 0.0
        if self._trial is not None:
            # Its answer may come any moment: whoever gave its slot back now would hear of it much later.
            age = self.clock() - self._trial.sent_at
            if age < _SOON:
                return min(self._pause, _SOON)
            return self._pause if age < self._trial_seconds else 0.0
        return max(0.0, self._retry_at - self.clock())

    def begin(self) -> Try:
        """A request goes out: in an open circuit it is the trial."""
        begun = Try(self.clock(), self.is_open)
        self._under_way.add(begun)
        if begun.is_trial:
            if self._trial is not None:
                self._trial_seconds = min(self._trial_seconds * 2, _LONGEST_TRIAL)
            self._trial = begun
        return begun

    def aborted(self, begun: Try) -> None:
        """It ended without telling anything about the backend: the next one may be the trial."""
        begun.is_told = True
        self._under_way.discard(begun)
        if self._trial is begun:
            self._trial = None

    def succeeded(self, begun: Try) -> None:
        """A normal answer."""
        begun.is_told = True
        self._under_way.discard(begun)
        self._normal_at, self._failures = self.clock(), 0
        if self._suspects:
            self._suspects.clear()
        if self.is_open and self._is_trial(begun):
            self.is_open, self._pause, self._trial, self.reason = False, 0.0, None, ""

    def heard(self) -> None:
        """The backend answers, which says nothing of how it answers lines."""
        self._failures = 0

    def failed(self, begun: Try, reason: str, *, at_once: bool = False, pause: float = 0.0) -> None:
        """A capacity failure; `at_once` opens whatever went before, `pause` is what the backend asked for."""
        begun.is_told = True
        self._under_way.discard(begun)
        self._failures += 1
        is_trial = self._is_trial(begun)
        if self.is_open and not is_trial:
            return
        if is_trial or at_once or self._failures >= self._enough_failures():
            self._open(reason, pause)

    def try_now(self) -> None:
        """The backend was seen to be there again: no need to wait out the pause."""
        self._retry_at = min(self._retry_at, self.clock())

    def answered_since(self, since: float) -> bool:
        """Whether a normal answer came then or later."""
        return self._normal_at is not None and self._normal_at >= since

    def blames_backend(
        self, request_id: str, *, since: float, proved: bool, vouched: bool | None = None
    ) -> bool:
        """Whether a failure that may be the line's own fault is put down to the backend (R8).

        It is the line's where the backend answered another line normally since `since`, the line's last try.
        Otherwise it is the line's until as many lines have failed since the last normal answer as open the
        circuit; lines `proved` at fault by an earlier attempt do not count among them.

        `vouched` is of a try that got no answer at all, None of others: where nothing says that the backend
        answered right before, it is the backend's; where something does, even an open circuit is no excuse.
        """
        if self.answered_since(since):
            return False
        if not proved and len(self._suspects) < self.failures_to_open:
            self._suspects.add(request_id)
        if len(self._suspects) >= self.failures_to_open:
            return True
        return self.is_open if vouched is None else not vouched

    def _is_trial(self, begun: Try) -> bool:
        """Since it opened the last time: earlier ones may end after another trial has closed it."""
        return begun.is_trial and self.is_open and begun.sent_at >= self.opened_at

    def _enough_failures(self) -> int:
        return max(self.failures_to_open, len(self._under_way) // 2)

    def _open(self, reason: str, pause: float) -> None:
        now = self.clock()
        if not self.is_open:
            self.opened_at, self.is_open = now, True
        self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._retry_at = now + max(self._pause, min(pause, _LONGEST_ASKED_PAUSE))
        self._trial, self._trial_seconds, self.reason = None, _FIRST_TRIAL, reason
