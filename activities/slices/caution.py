"""Lines that workers die of: found among all others, asked alone, given up at last.

A slice whose last attempts ended without a word writes down which lines it is about to ask. Those that were
written down when another worker died are suspects; each is asked alone, one at a time in a process.
"""

from collections.abc import Sequence
from typing import NamedTuple

from batchwright.contracts.execution import HANDED_BACK, SliceResult

CAREFUL_FROM = 2  # deaths in a row: one may be anything
GIVEN_UP_AFTER = 3  # deaths while a line was asked, the last two of them alone
GROUP = 16  # lines written down together, and in flight at once, of a slice that is careful


class Past(NamedTuple):
    """`since` is the first attempt after the last one that ended by itself."""

    attempt: int
    since: int

    @property
    def deaths(self) -> int:
        """How many attempts right before this one ended without a word."""
        return self.attempt - self.since


def past_of(attempt: int, details: Sequence[object]) -> Past:
    """From the heartbeat details of the attempts before."""
    told = SliceResult()
    for one in details:
        if isinstance(one, dict):
            told = SliceResult.model_validate(one)
    if HANDED_BACK in details:
        return Past(attempt, told.attempt + 1 if told.attempt else attempt)
    return Past(attempt, told.since or 1)


class Caution:
    """Of one attempt. `note` stands beside lines it is about to ask, `last_note` beside those of the last."""

    def __init__(self, past: Past, generation: int) -> None:
        self.past, self.is_careful = past, past.deaths >= CAREFUL_FROM
        self.note = f"{generation}/{past.attempt}"
        self.last_note = f"{generation}/{past.attempt - 1}" if past.deaths else ""
