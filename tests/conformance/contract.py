"""The rows of the conformance table: what a client may rely on, and the check that proves it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from openai import AsyncOpenAI

from batchwright.contracts.openai import Profile
from tests.e2e.stack import Stack

Area = Literal["Files", "Uploads", "Batches", "Results", "Models", "Errors", "Operation", "Webhooks"]
Client = Literal["Python", "Node"]
Place = Literal["ordinary", "tight", "keys"]
BOTH = (Profile.RELAXED, Profile.STRICT)


@dataclass(frozen=True)
class Api:
    """The running API in one profile, and the official client of it."""

    url: str
    profile: Profile
    client: AsyncOpenAI
    stack: Stack


Check = Callable[[Api], Awaitable[None]]


class Row(NamedTuple):
    """`rule` says what a client may rely on, in a sentence without a period.

    `place`: over the settings as they are, with tight limits and policies, or where callers need keys.
    """

    area: Area
    rule: str
    client: Client
    profiles: tuple[Profile, ...]
    place: Place = "ordinary"


class Table:
    """Filled by the decorators of the modules that hold the checks."""

    def __init__(self, place: Place = "ordinary") -> None:
        self._place: Place = place
        self.checks: dict[Row, Check] = {}

    def row(self, area: Area, rule: str, *profiles: Profile) -> Callable[[Check], Check]:
        """A check with the official Python client; in both profiles unless some are named."""

        def note(check: Check) -> Check:
            self.checks[Row(area, rule, "Python", profiles or BOTH, self._place)] = check
            return check

        return note
