"""Callback tokens: valid ones can be read, and changed ones are rejected."""

import pytest
from hypothesis import given

from batchwright.rules.backends.callback_tokens import CallbackToken, sign_token, verify_token
from tests.unit.rules.texts import texts

SECRET = "s" * 32
DIGITS = "0123456789abcdef" * 2
TOKEN = CallbackToken(f"batch_req_{DIGITS}", 3, 1_800_000_000)


def test_a_token_identifies_its_job() -> None:
    token = sign_token(TOKEN, SECRET)
    assert verify_token(token, SECRET) == TOKEN
    assert TOKEN.id == f"{DIGITS}.3"
    assert token.startswith(f"{DIGITS}.3.1800000000.")


@pytest.mark.parametrize(
    ("old", "new"),
    [("0123", "0124"), (".3.", ".4."), (".3.", ".03."), (".3.", "."), (".18", ".19"), ("01", "")],
)
def test_a_changed_token_is_refused(old: str, new: str) -> None:
    assert verify_token(sign_token(TOKEN, SECRET).replace(old, new, 1), SECRET) is None


def test_a_token_of_another_secret_is_refused() -> None:
    assert verify_token(sign_token(TOKEN, SECRET), "t" * 32) is None


@given(texts(max_size=120))
def test_other_text_is_not_a_token(text: str) -> None:
    assert verify_token(text, SECRET) is None
