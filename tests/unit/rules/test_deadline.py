"""Completion windows, start times and deadlines."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from batchwright.contracts.terms import Profile
from batchwright.rules.deadline import (
    Deadline,
    is_window,
    parse_start_time,
    window_seconds,
    window_text,
)

SHORTEST, LONGEST = 60, 14 * 86_400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("90s", 90), ("5m", 300), ("24h", 86_400), ("1d", 86_400), ("14d", LONGEST)],
)
def test_a_relaxed_window_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert window_seconds(text, Profile.RELAXED, SHORTEST, LONGEST) == seconds


@pytest.mark.parametrize(
    "text",
    ["59s", "15d", "0h", "24", "h", "", "24H", " 24h", "24h\n", "-1h", "1.5h", "1w", "٣h", "999999999999d"],
)
def test_other_windows_are_refused_with_valid_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"from 60s to 14d, such as '24h'\.$") as refused:
        window_seconds(text, Profile.RELAXED, SHORTEST, LONGEST)
    assert str(refused.value).startswith(f"Invalid value: '{text}'. ")


@pytest.mark.parametrize("profile", list(Profile))
def test_a_missing_window_and_24h_are_a_day_in_every_profile(profile: Profile) -> None:
    assert window_seconds(None, profile, SHORTEST, LONGEST) == 86_400
    assert window_seconds("24h", profile, SHORTEST, LONGEST) == 86_400


def test_24h_is_accepted_even_by_an_operator_who_allows_shorter_windows_only() -> None:
    assert window_seconds("24h", Profile.RELAXED, 60, 3600) == 86_400


def test_profile_strict_accepts_24h_only() -> None:
    with pytest.raises(ValueError, match=r"^Invalid value: '1d'\. Supported values are: '24h'\.$"):
        window_seconds("1d", Profile.STRICT, SHORTEST, LONGEST)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(60, "60s"), (61, "61s"), (300, "5m"), (7200, "2h"), (86_400, "24h"), (90_000, "25h"), (172_800, "2d")],
)
def test_seconds_are_written_in_the_largest_unit_that_fits(seconds: int, text: str) -> None:
    assert window_text(seconds) == text
    assert window_seconds(text, Profile.RELAXED, 1, LONGEST) == seconds


@pytest.mark.parametrize(("text", "valid"), [("24h", True), ("7d", True), ("0h", False), ("24", False)])
def test_a_window_is_recognized_by_its_form_alone(text: str, valid: bool) -> None:
    assert is_window(text) is valid


@pytest.mark.parametrize(
    "value",
    [
        1_764_554_400,
        "2025-12-01T02:00:00Z",
        "2025-12-01t02:00:00.987z",
        "2025-12-01 04:30:00+02:30",
        "2025-11-30T21:00:00.5-05:00",
    ],
)
def test_a_start_time_is_unix_seconds_or_a_time_with_an_offset_in_whole_seconds_of_utc(
    value: int | str,
) -> None:
    found = parse_start_time(value)
    assert found == datetime(2025, 12, 1, 2, tzinfo=UTC)
    assert found.tzinfo is UTC


@pytest.mark.parametrize(
    "value", ["", "tomorrow", "2025-12-01", "2025-12-01T02:00:00", "2025-02-30T02:00:00Z", 10**18, "1" * 500]
)
def test_any_other_start_time_is_refused_with_a_valid_example(value: int | str) -> None:
    with pytest.raises(ValueError, match=r"such as '2026-12-01T02:00:00Z', but got ") as refused:
        parse_start_time(value)
    assert len(str(refused.value)) < 200


def test_a_deadline_passes_at_its_time_and_its_grace_ends_later() -> None:
    at = datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
    deadline = Deadline.of(at, grace=5)
    assert [deadline.passed(noon + late) for late in (-0.1, 0.0, 0.1)] == [False, True, True]
    assert (deadline.remaining(noon - 60), deadline.remaining(noon + 60)) == (60, -60)
    assert (deadline.grace_remaining(noon - 60), deadline.grace_remaining(noon + 60)) == (65, -55)
