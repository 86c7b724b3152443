"""The simulated scenarios. Each has a backend and, in most cases, a disturbance of one minute."""

from bench.limits.backend import BackendModel, Disturbance
from bench.limits.simulation import SECONDS, Scenario

_FROM, _TO = 90.0, 150.0


def _trouble(slots: int, slower: float = 1.0) -> tuple[Disturbance, ...]:
    return (Disturbance(_FROM, _TO, slots, slower),)


CAPACITY_LOSS = Scenario(
    "Sudden capacity loss: 64 slots, then 16 for a minute; 16 requests can wait, more are rejected",
    BackendModel(queue=16, trouble=_trouble(16)),
    back_at=_TO,
)
CROWDED = Scenario(
    "The same without errors: requests beyond capacity wait, and time out after 6 s",
    BackendModel(trouble=_trouble(16)),
    timeout=6.0,
    back_at=_TO,
)
SLOW = Scenario(
    "Slow backend without errors: 128 slots, responses take four times as long for a minute",
    BackendModel(slots=128, trouble=_trouble(128, 4.0)),
    back_at=_TO,
)
INTERACTIVE = Scenario(
    "Shared backend: 30 interactive requests a second, 20 s on and 20 s off",
    BackendModel(),
    burst=30.0,
    bursts=tuple((float(since), since + 20.0) for since in range(50, int(SECONDS), 40)),
)
FLAKY = Scenario(
    "A gateway that rejects one request in ten at random: 128 slots",
    BackendModel(slots=128, rejection_rate=0.1),
)
UNEVEN = Scenario(
    "Long answers of very different length (sigma 1), and room for all: 128 slots",
    BackendModel(slots=128, seconds=5.0, spread=1.0),
    timeout=600.0,
)
SCENARIOS = (CAPACITY_LOSS, CROWDED, SLOW, INTERACTIVE, FLAKY, UNEVEN)
