"""Batches as users make them, one after the other: sizes, models, faults and endings by the seed."""

import random
from dataclasses import dataclass, field
from typing import Literal

from tests.e2e.batches import CHAT
from tests.e2e.stack import MODELS

Fate = Literal["answered", "refused", "unserved"]
Ending = Literal["completed", "cancelled", "expired"]
UNSERVED = "nobody-serves-this"

# Faults by marker, as the simulator reads them, each of which ends in an answer.
_TROUBLES = (
    "",
    "",
    "",
    "",
    "",
    "",
    "sim:429*2",
    "sim:503*2",
    "sim:500*2",
    "sim:cut*1",
    "sim:garbage*1",
    "sim:slow=1.5",
)
LARGEST = 400


@dataclass
class Submission:
    """One batch to be made: its lines, and what has to become of each."""

    lines: list[dict[str, object]]
    fates: dict[str, Fate]
    ending: Ending
    window: str = "24h"
    cancel_after: float = 0.0
    tenant: str = "default"


@dataclass
class Seen:
    """What was seen of it."""

    submission: Submission
    batch_id: str
    statuses: list[str] = field(default_factory=list[str])


def submission(seed: int, number: int, largest: int = LARGEST) -> Submission:
    """The batch of that number, of at most so many lines: equal for an equal seed."""
    chance = random.Random(f"{seed}/{number}")
    size = int(chance.triangular(1, largest, min(60, largest)))
    lines, fates = list[dict[str, object]](), dict[str, Fate]()
    for place in range(size):
        custom_id = f"b{number}-l{place}"
        fate = chance.choices(("answered", "refused", "unserved"), (96, 2, 2))[0]
        fates[custom_id] = fate
        lines.append(_line(chance, custom_id, fate))
    ending = chance.choices(("completed", "cancelled", "expired"), (7, 2, 1))[0]
    window = f"{chance.randint(6, 15)}s" if ending == "expired" else "24h"
    tenant = chance.choice(("default", "acme", "globex"))
    return Submission(lines, fates, ending, window, chance.uniform(0, 6), tenant)


def _line(chance: random.Random, custom_id: str, fate: Fate) -> dict[str, object]:
    trouble = "sim:400" if fate == "refused" else chance.choice(_TROUBLES)
    body: dict[str, object] = {
        "model": UNSERVED if fate == "unserved" else chance.choice(MODELS),
        "messages": [{"role": "user", "content": f"{custom_id} {'x' * chance.randint(0, 2000)}"}],
    }
    if trouble:
        body["user"] = f"{trouble} {custom_id}"
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}
