"""The quarantine of lines that may crash workers. Quarantined lines are sent one at a time.

After two crashes, a slice stores which lines it is about to send. If its worker crashes again, these lines
are quarantined. A quarantined line is sent only while no other line of its slice is in flight. No other
quarantined line or quarantined step (activity such as ingestion) of the process may run at the same time.
After three crashes while a line was being sent, `attempt.py` settles this line with an error.

Before an attempt sends lines, it reads the stored results and the lines. This part of the attempt is called
preparation. A worker can also crash during the preparation. After two such crashes, preparations are
quarantined, too. After three crashes during a quarantined preparation, the slice fails. A crash after the
preparation shows that the preparation is harmless. Therefore the next preparation is not quarantined, and
waits for no other slice.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from batchwright.contracts.temporal_payloads.execution import RELEASED, SliceResult

CRASHES_BEFORE_TRACKING = 2  # a single crash may have any cause
CRASHES_BEFORE_QUARANTINED_PREPARATION = 2  # crashes before the lines were read
MAX_LINE_CRASHES = 3  # crashes while the line was in flight; during the last two it was alone
MAX_PREPARATION_CRASHES = 3  # crashes during a quarantined preparation
TRACKED_BATCH_SIZE = 16  # while tracking: number of lines recorded together, and maximum in flight


class AttemptHistory(NamedTuple):
    """The crashes of earlier attempts of a slice, as the current attempt knows them.

    If an attempt has read the slice's lines and did not crash, the counts start at 0 again.

    Attributes:
        attempt: number of the current attempt.
        crashes: number of attempts that crashed.
        first_crash: number of the first attempt that crashed; 0 if no attempt crashed. Each attempt between
            `first_crash` and `attempt` has also crashed, or has not read the lines.
        preparation_crashes: how many of the crashed attempts crashed during a quarantined preparation.
        unread_crashes: how many attempts crashed before they had read the lines, since an attempt last read
            them.
    """

    attempt: int
    crashes: int = 0
    first_crash: int = 0
    preparation_crashes: int = 0
    unread_crashes: int = 0


def attempt_history(attempt: int, details: Sequence[object]) -> AttemptHistory:
    """Return how many attempts of a slice crashed before this one, as the slice's last heartbeat shows it.

    An attempt that ends without a crash sends a last heartbeat that contains the text RELEASED.

    - If an attempt ended without this heartbeat, it has crashed, and is counted.
    - If an attempt did not crash, and has read the lines of the slice, the count begins again at 0. This is
      how nearly all attempts end.
    - If an attempt did not crash, and ended before it read the lines, the count does not change. For example,
      a dependency was unavailable. Such an attempt shows nothing about the lines.

    Args:
        attempt: number of the attempt that starts now.
        details: the details of the last heartbeat.
    """
    last = SliceResult()
    for one in details:
        if isinstance(one, dict):
            last = SliceResult.model_validate(one)
    has_crashed = RELEASED not in details
    if not last.attempt:  # no attempt before this one has sent a heartbeat with its number
        crashes = attempt - 1 if has_crashed else 0
        return AttemptHistory(attempt, crashes, first_crash=1 if crashes else 0, unread_crashes=crashes)
    unreported = attempt - last.attempt - 1  # attempts since then that ended before their first heartbeat
    if unreported < 0:  # an operator has reset the activity: its attempts are counted from 1 again
        return AttemptHistory(attempt)
    first_crash = last.attempt if has_crashed else last.attempt + 1 if unreported else 0
    if last.has_read and not has_crashed:
        last = SliceResult()
    return AttemptHistory(
        attempt,
        crashes=last.crashes + has_crashed + unreported,
        first_crash=last.first_crash or first_crash,
        preparation_crashes=last.preparation_crashes + (has_crashed and last.is_preparing),
        unread_crashes=(0 if last.has_read else last.unread_crashes + has_crashed) + unreported,
    )


class CrashQuarantine:
    """The data with which an attempt of a slice finds the lines that crash workers.

    After two crashed attempts, each further attempt must record which lines it is about to send
    (`is_tracking`). It stores its marker, a text that names the attempt, with each of these lines. If this
    attempt crashes, too, the next attempts find the lines by this marker.

    Attributes:
        history: the attempts that crashed before this attempt.
        is_tracking: True if lines must be recorded before they are sent.
        must_prepare_alone: True if the preparation of this attempt is quarantined.
        may_have_rival: True if an earlier attempt may still run, in a worker that has lost its connection to
            Temporal but not to storage.
        marker: marker of this attempt.
        crashed_markers: markers of all attempts that crashed. The marker of the last crash is not enough,
            because that attempt may have crashed before it quarantined the lines with an older marker.
        is_preparing: True during a quarantined preparation (the reading of stored results and lines).
        has_read: True after the attempt has read the lines.
    """

    def __init__(self, history: AttemptHistory, generation: int) -> None:
        self.history, self.is_tracking = history, history.crashes >= CRASHES_BEFORE_TRACKING
        self.must_prepare_alone = history.unread_crashes >= CRASHES_BEFORE_QUARANTINED_PREPARATION
        self.may_have_rival = bool(history.crashes or (generation and history.attempt == 1))
        self.is_preparing = self.has_read = False
        self.marker = f"{generation}/{history.attempt}"
        crashed = range(history.first_crash, history.attempt) if history.crashes else ()
        self.crashed_markers = frozenset(f"{generation}/{attempt}" for attempt in crashed)

    def heartbeat_fields(self) -> dict[str, int]:
        """Return the heartbeat fields (`SliceResult`) that tell the next attempt how many attempts crashed.

        The fields also tell it how far this attempt has come.
        """
        return {**self.history._asdict(), "has_read": self.has_read, "is_preparing": self.is_preparing}


class QuarantineOrder:
    """The order in which the slices of a process send their quarantined lines, one line each time.

    Batches take turns. So a batch with a few quarantined lines does not wait until a large batch has sent all
    of its own. Within a batch, the slice that has waited longest is next.

    A slice is identified by the event that wakes it. The event is set when the slice becomes the next one.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[asyncio.Event, None]] = {}  # by batch id

    def is_next(self, batch_id: str, wake: asyncio.Event) -> bool:
        """Return True if the slice may send its next quarantined line now. Otherwise, it begins to wait.

        After this call, the slice must call `leave` when it has sent the line, or when it wants to send no
        quarantined line now. Until then, it keeps its place, and the slices behind it wait.
        """
        self._waiting.setdefault(batch_id, {}).setdefault(wake)
        return wake is self._next()

    def leave(self, batch_id: str, wake: asyncio.Event, *, has_sent: bool = False) -> None:
        """Stop waiting, and wake the next slice. If the slice does not wait, do nothing.

        Args:
            has_sent: True if the slice has sent a line, or has waited too long for a permit to send it. Then
                all other batches come before its batch.
        """
        slices = self._waiting.get(batch_id, {})
        if wake not in slices:
            return
        del slices[wake]
        if has_sent or not slices:
            del self._waiting[batch_id]
            if slices:
                self._waiting[batch_id] = slices
        if (next_slice := self._next()) is not None:
            next_slice.set()

    def _next(self) -> asyncio.Event | None:
        return next((wake for slices in self._waiting.values() for wake in slices), None)
