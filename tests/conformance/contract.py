"""Definition of the conformance table.

Each row is a rule on which clients may rely, with a check that proves it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from openai import AsyncOpenAI

from batchwright.contracts.terms import Profile
from tests.e2e.stack import Stack

Area = Literal[
    "Files",
    "Uploads",
    "Batches",
    "Results",
    "Message batches",
    "Single calls",
    "Models",
    "Errors",
    "Operation",
    "Webhooks",
]
Client = Literal["Python", "Node"]
Place = Literal["ordinary", "tight", "keys"]
BOTH = (Profile.RELAXED, Profile.STRICT)


@dataclass(frozen=True)
class Api:
    """A running API in one profile (relaxed or strict), and the official Python client for it."""

    url: str
    profile: Profile
    client: AsyncOpenAI
    stack: Stack


Check = Callable[[Api], Awaitable[None]]


class Row(NamedTuple):
    """A row of the conformance table.

    Attributes:
        rule: what a client may rely on, as a sentence without a period.
        client: official client with which the rule is checked.
        profiles: profiles of the API (relaxed, strict) in which the rule holds.
        place: kind of stack: with the default settings, with small limits, or with API keys.
    """

    area: Area
    rule: str
    client: Client
    profiles: tuple[Profile, ...]
    place: Place = "ordinary"


class Table:
    """The conformance table: its rows with their checks. Modules add rows with the method `row`."""

    def __init__(self, place: Place = "ordinary") -> None:
        self._place: Place = place
        self.checks: dict[Row, Check] = {}

    def row(self, area: Area, rule: str, *profiles: Profile) -> Callable[[Check], Check]:
        """Return a decorator that adds a row to the table. The decorated function is the row's check.

        The check uses the official Python client.

        Args:
            rule: what a client may rely on, as a sentence without a period.
            profiles: profiles in which the rule holds; none for both.
        """

        def note(check: Check) -> Check:
            self.checks[Row(area, rule, "Python", profiles or BOTH, self._place)] = check
            return check

        return note
