"""Random batches as users make them. The seed determines their sizes, models, faults and ends."""

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from tests.e2e.batches import CHAT
from tests.e2e.stack import MODELS

Fate = Literal["answered", "refused", "unserved"]
Ending = Literal["completed", "cancelled", "expired"]
TENANTS = ("default", "acme", "globex")
UNSERVED = "nobody-serves-this"

# Faults by marker, as the simulator reads them, each of which ends in an answer.
TROUBLES = (
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


class Door(StrEnum):
    """A way in which users create batches."""

    FILE = "file"
    MESSAGES = "message batch"
    OBJECT = "object"
    LATER = "start time"
    SCHEDULE = "schedule"
    FOLDER = "folder"


@dataclass
class Submission:
    """A batch to submit, and how it is expected to end.

    `fates` has the expected result of each line by custom_id.
    """

    lines: list[dict[str, object]]
    fates: dict[str, Fate]
    ending: Ending
    window: str = "24h"
    cancel_after: float = 0.0
    tenant: str = "default"
    door: Door = Door.FILE

    @property
    def content(self) -> bytes:
        """The lines as the content of an input file."""
        return "".join(json.dumps(line) + "\n" for line in self.lines).encode()


@dataclass
class Seen:
    """A submitted batch, with the statuses that were observed, in order.

    Attributes:
        ended_at: Unix time at which its end and its files were observed; None before.
    """

    submission: Submission
    batch_id: str
    statuses: list[str] = field(default_factory=list[str])
    ended_at: float | None = None
    _before: object = None  # state at the first observation after `await_progress`
    _has_progressed: bool = True

    def await_progress(self) -> None:
        """Begin to wait for progress of the batch.

        `has_progressed` is False from now on, until the batch has ended or two observations after this call
        differ.
        """
        self._before, self._has_progressed = None, False

    def observe(self, status: str, counts: object) -> None:
        if not self.statuses or self.statuses[-1] != status:
            self.statuses.append(status)
        if self._before is None:
            self._before = (status, counts)
        elif self._before != (status, counts):
            self._has_progressed = True

    def end(self) -> None:
        self.ended_at = time.time()

    @property
    def has_progressed(self) -> bool:
        return self._has_progressed or self.ended_at is not None


def submission(
    seed: int, number: int, largest: int = LARGEST, doors: Sequence[Door] = tuple(Door)
) -> Submission:
    """Return the batch with this number. Equal arguments always give equal batches.

    Args:
        number: number of the batch in the chaos run.
        largest: maximum number of lines of a batch.
        doors: ways to create a batch. Consecutive batches use each of them once. The seed determines their
            order.
    """
    rng = random.Random(f"{seed}/{number}")
    door = random.Random(f"doors {seed}").sample(doors, len(doors))[number % len(doors)]
    size = int(rng.triangular(1, largest, min(60, largest)))
    lines, fates = list[dict[str, object]](), dict[str, Fate]()
    for place in range(size):
        custom_id = f"b{number}-l{place}"
        fate = rng.choices(("answered", "refused", "unserved"), (96, 2, 2))[0]
        fates[custom_id] = fate
        lines.append(_line(rng, custom_id, fate, door))
    ending = rng.choices(("completed", "cancelled", "expired"), (7, 2, 1))[0]
    if door is Door.MESSAGES and ending == "expired":
        ending = "completed"  # its window is always 24 hours
    window = f"{rng.randint(6, 15)}s" if ending == "expired" else "24h"
    tenant = rng.choice(TENANTS)
    return Submission(lines, fates, ending, window, rng.uniform(0, 6), tenant, door)


def _line(rng: random.Random, custom_id: str, fate: Fate, door: Door) -> dict[str, object]:
    trouble = "sim:400" if fate == "refused" else rng.choice(TROUBLES)
    body: dict[str, object] = {
        "model": UNSERVED if fate == "unserved" else rng.choice(MODELS),
        "messages": [{"role": "user", "content": f"{custom_id} {'x' * rng.randint(0, 2000)}"}],
    }
    marker = f"{trouble} {custom_id}" if trouble else ""
    if door is Door.MESSAGES:
        body |= {"max_tokens": 16, "metadata": {"user_id": marker}}
    elif marker:
        body["user"] = marker
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}
