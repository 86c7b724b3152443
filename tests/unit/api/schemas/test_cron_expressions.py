"""Cron expressions: what is accepted, and why the rest is not."""

import re

import pytest

from batchwright.api.schemas.cron_expressions import check_cron


@pytest.mark.parametrize(
    "text",
    [
        "* * * * *",
        "0 2 * * *",
        "*/15 8-18 * * mon-fri",
        "0,30 0 1,15 jan-jun/2 *",
        "5/20 * * * 7",
        "0 0 29 2 *",
        "0 0 31 * *",
    ],
)
def test_a_cron_form_is_accepted(text: str) -> None:
    assert check_cron(text) == text


def test_spaces_between_fields_are_reduced_to_one() -> None:
    assert check_cron("  0\t2  * * * ") == "0 2 * * *"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected five fields"),
        ("0 2 * *", "but got 4"),
        ("0 0 2 * * *", "but got 6"),
        ("@daily", "but got 1"),
        ("60 2 * * *", "the minute '60' is not from 0 to 59"),
        ("0 24 * * *", "the hour '24'"),
        ("0 2 0 * *", "the day of the month '0'"),
        ("0 2 * 13 *", "the month '13'"),
        ("0 2 * * 8", "the day of the week '8'"),
        ("0 2 * * someday", "the day of the week 'someday'"),
        ("0 2 * mon *", "the month 'mon'"),
        ("5-1 2 * * *", "runs backwards"),
        ("*/0 2 * * *", "the step in the minute '*/0'"),
        ("*/99 2 * * *", "must be from 1 to 59"),
        ("1,,2 * * * *", "the minute '1,,2' is not valid"),
        ("-1 * * * *", "the minute '-1' is not valid"),
        ("? * * * *", "is not valid"),
        ("0 2 L * *", "the day of the month 'L'"),
        ("\u0661 2 * * *", "is not valid"),
        ("0 2 13 * fri", "cannot both be set"),
        ("0 0 30 2 *", "it would never run"),
        ("0 0 31 4,6,9,11 *", "it would never run"),
        ("0 2 * * *" + 300 * " ", "over 256 characters"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        check_cron(text)
