"""Completion windows."""

import pytest

from batchwright.contracts.terms import Profile
from batchwright.rules.deadline import window_seconds, window_text

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
