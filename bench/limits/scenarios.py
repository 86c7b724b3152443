"""The troubles that limits are tried in: an engine of 64 slots and answers of a second."""

from bench.limits.engine import Make, Trouble
from bench.limits.simulation import SECONDS, Scenario

_FROM, _TO = 90.0, 150.0


def _trouble(slots: int, slower: float = 1.0) -> tuple[Trouble, ...]:
    return (Trouble(_FROM, _TO, slots, slower),)


CAPACITY_LOSS = Scenario(
    "Sudden capacity loss: 64 slots, then 16 for a minute; 16 may wait, more are refused",
    Make(queue=16, trouble=_trouble(16)),
    back_at=_TO,
)
CROWDED = Scenario(
    "The same without errors: whoever comes too many waits, and is given up after 6 s",
    Make(trouble=_trouble(16)),
    timeout=6.0,
    back_at=_TO,
)
SLOW = Scenario(
    "Slow engine without errors: room for 128, every answer takes four times as long for a minute",
    Make(slots=128, trouble=_trouble(128, 4.0)),
    back_at=_TO,
)
INTERACTIVE = Scenario(
    "Shared engine: 30 interactive requests a second, 20 s on and 20 s off",
    Make(),
    burst=30.0,
    bursts=tuple((float(since), since + 20.0) for since in range(50, int(SECONDS), 40)),
)
FLAKY = Scenario(
    "A gateway that refuses one request in ten, whatever is in flight: room for 128",
    Make(slots=128, flaky=0.1),
)
SCENARIOS = (CAPACITY_LOSS, CROWDED, SLOW, INTERACTIVE, FLAKY)
