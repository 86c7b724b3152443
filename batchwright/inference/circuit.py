"""One model's circuit: opens when its backend takes nothing, lets one trial through, closes on an answer."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0


@dataclass
class Circuit:
    """Seconds are the clock's. `failures_to_open` capacity failures in a row open it, a refusal at once."""

    failures_to_open: int
    clock: Callable[[], float] = time.monotonic
    reason: str = ""
    _failures: int = 0
    _pause: float = 0.0  # 0: closed
    _retry_at: float = 0.0
    _trial: bool = False
    _suspects: set[str] = field(default_factory=set[str])

    @property
    def is_open(self) -> bool:
        return self._pause > 0

    def wait(self) -> float:
        """Seconds until a request may be tried; 0: now."""
        if not self.is_open:
            return 0.0
        if self._trial:
            return self._pause
        return max(0.0, self._retry_at - self.clock())

    def begin(self) -> None:
        """A request goes out: in an open circuit it is the trial."""
        if self.is_open:
            self._trial = True

    def aborted(self) -> None:
        """The request ended without telling anything."""
        self._trial = False

    def succeeded(self) -> None:
        """A normal answer: closed."""
        self._failures, self._pause, self._trial, self.reason = 0, 0.0, False, ""
        self._suspects.clear()

    def failed(self, reason: str, *, at_once: bool = False) -> None:
        """A capacity failure; `at_once` opens whatever went before."""
        self._failures += 1
        if self._trial or at_once or (not self.is_open and self._failures >= self.failures_to_open):
            self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
            self._retry_at = self.clock() + self._pause
            self.reason = reason
        self._trial = False

    def blames_backend(self, request_id: str) -> bool:
        """Whether a failure that may be the line's own fault is the backend's (R8).

        It is once that many different lines have failed since the last normal answer: one line that always
        fails ends by its own attempts, even alone; a backend that fails everything uses up nobody's.
        """
        self._suspects.add(request_id)
        return len(self._suspects) >= self.failures_to_open
