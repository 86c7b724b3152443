"""Collects the result of each row and profile during a test run, for the table at the end."""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from pydantic import TypeAdapter

from batchwright.contracts.terms import Profile
from tests.conformance.contract import Row

VERDICT = "conformance"
Record = Callable[[str, object], None]
_Verdict = tuple[str, str, str, Profile, bool]  # area, rule, client, profile, whether it holds
_VERDICT = TypeAdapter(_Verdict)
_WORDS = {None: "", True: "ok", False: "FAILED"}


@contextmanager
def recorded_verdict(record: Record, row: Row, profile: Profile) -> Generator[None]:
    """Context manager that records the result of a check.

    Args:
        record: called with the result.
        row: row of the conformance table. The `with` block is its check.
        profile: profile of the API (relaxed or strict) in which the check runs.
    """
    holds = False
    try:
        yield
        holds = True
    finally:
        record(VERDICT, (*row[:3], profile.value, holds))


def table(properties: Iterable[tuple[str, object]]) -> list[str]:
    """Return the table as text: a header, and one line for each row that was checked."""
    found: dict[tuple[str, str, str], dict[Profile, bool]] = {}
    for name, value in properties:
        if name == VERDICT:
            area, rule, client, profile, holds = _VERDICT.validate_python(value)
            found.setdefault((area, rule, client), {})[profile] = holds
    head = f"{'relaxed':8}{'strict':8}{'client':8}{'':17}"
    return [head, *(_line(row, found[row]) for row in sorted(found, key=lambda row: row[0]))]


def _line(row: tuple[str, str, str], holds: dict[Profile, bool]) -> str:
    area, rule, client = row
    words = [_WORDS[holds.get(profile)] for profile in (Profile.RELAXED, Profile.STRICT)]
    return f"{words[0]:8}{words[1]:8}{client:8}{area:17}{rule}"
