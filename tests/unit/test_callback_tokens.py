"""Tokens of callbacks: read back, and refused where anything of them is another's."""

import pytest
from hypothesis import given

from batchwright.rules.callbacks import Callback, read_token, token_of
from tests.unit.texts import texts

SECRET = "s" * 32
DIGITS = "0123456789abcdef" * 2
MADE = Callback(f"batch_req_{DIGITS}", 3, 1_800_000_000)


def test_a_token_says_whose_job_it_is() -> None:
    token = token_of(MADE, SECRET)
    assert read_token(token, SECRET) == MADE
    assert MADE.id == f"{DIGITS}.3"
    assert token.startswith(f"{DIGITS}.3.1800000000.")


@pytest.mark.parametrize(
    ("old", "new"),
    [("0123", "0124"), (".3.", ".4."), (".3.", ".03."), (".3.", "."), (".18", ".19"), ("01", "")],
)
def test_one_that_was_changed_is_refused(old: str, new: str) -> None:
    assert read_token(token_of(MADE, SECRET).replace(old, new, 1), SECRET) is None


def test_one_of_another_secret_is_refused() -> None:
    assert read_token(token_of(MADE, SECRET), "t" * 32) is None


@given(texts(max_size=120))
def test_no_other_text_is_one(text: str) -> None:
    assert read_token(text, SECRET) is None
