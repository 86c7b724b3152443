"""How `batchwright doctor` compares the clock of this machine with that of a server."""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.starter.diagnostics.clock_check import compare_clocks
from batchwright.starter.diagnostics.findings import Level

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def compared(*, before: float, after: float) -> tuple[Level, str]:
    """Compare our clock with a server's clock that shows noon. Return the level and the message of the
    finding.

    By our clock, the request is sent `before` seconds before noon, and the response comes `after` seconds
    after noon.
    """
    asked, answered = NOON - timedelta(seconds=before), NOON + timedelta(seconds=after)
    finding = compare_clocks("the server", NOON, asked=asked, answered=answered)
    return finding.level, finding.message


@pytest.mark.parametrize(("before", "after"), [(0, 0), (60, 0), (0, 60), (60, 60), (-4, 60), (60, -4)])
def test_a_slow_response_is_not_a_wrong_clock(before: float, after: float) -> None:
    assert compared(before=before, after=after) == (Level.OK, "The clock of the server agrees with ours.")


@pytest.mark.parametrize(("before", "after", "side"), [(-20, 60, "20 s ahead of"), (60, -20, "20 s behind")])
def test_a_clock_that_no_delay_explains_is_a_warning(before: float, after: float, side: str) -> None:
    assert compared(before=before, after=after) == (
        Level.WARNING,
        f"Our clock is {side} that of the server.",
    )
