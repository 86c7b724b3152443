"""API keys: their form, and the stored data."""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.rules.tenants.api_keys import (
    SecretHash,
    hash_secret,
    is_usable,
    new_key,
    parse_key,
    parse_lifetime,
    secret_matches,
)
from batchwright.telemetry.redaction import Redactor

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_new_key_can_be_parsed_and_no_two_are_equal() -> None:
    keys = [new_key() for _ in range(50)]
    assert [parse_key(key.text) for key in keys] == keys
    assert len({key.prefix for key in keys}) == len({key.secret for key in keys}) == 50


@pytest.mark.parametrize(
    "text",
    ["", "bw_", "none", "sk-abc", "bw_abcdefghijkl_short", "bw_ABCDEFGHIJKL_" + "a" * 40, "bw_a_" + "b" * 40],
)
def test_text_in_another_form_is_not_a_key(text: str) -> None:
    assert parse_key(text) is None


@pytest.mark.parametrize("more", ["x", " ", "\n", "\x00", "é"])
def test_a_key_with_additional_characters_is_not_a_key(more: str) -> None:
    key = new_key().text
    assert parse_key(key + more) is parse_key(more + key) is None


def test_only_the_secret_matches_its_stored_hash() -> None:
    key, other = new_key(), new_key()
    stored_hash = hash_secret(key)
    assert secret_matches(key, stored_hash)
    assert not secret_matches(other, stored_hash)
    assert not secret_matches(key, None)
    assert not secret_matches(key, SecretHash(b"", b""))


def test_equal_secrets_have_different_stored_hashes() -> None:
    key = new_key()
    one, two = hash_secret(key), hash_secret(key)
    assert one.hash != two.hash
    assert key.secret.encode() not in one.hash + one.salt


def test_no_representation_has_the_secret() -> None:
    key = new_key()
    assert key.secret not in f"{key!r} {key} {[key]}"
    assert key.prefix in repr(key)


@pytest.mark.parametrize(
    ("change", "usable"),
    [
        ({}, True),
        ({"expires_at": NOW + timedelta(seconds=1)}, True),
        ({"expires_at": NOW}, False),
        ({"revoked_at": NOW + timedelta(days=1)}, False),
        ({"disabled_at": NOW - timedelta(days=1)}, False),
    ],
)
def test_a_key_is_usable_until_it_expires_is_revoked_or_its_tenant_is_disabled(
    change: dict[str, datetime], usable: bool
) -> None:
    nothing: dict[str, datetime | None] = {"expires_at": None, "revoked_at": None, "disabled_at": None}
    assert is_usable(NOW, **(nothing | change)) is usable


def test_a_lifetime_is_in_hours_or_days() -> None:
    assert (parse_lifetime("12h"), parse_lifetime("90d")) == (timedelta(hours=12), timedelta(days=90))
    for text in ("", "0d", "5", "5m", "-1d", "1.5h", "99999999d"):
        with pytest.raises(ValueError, match="12h or 90d"):
            parse_lifetime(text)


def test_logs_redact_a_key_in_any_context() -> None:
    key = new_key()
    for text in (key.text, f"sent '{key.text}'", f"Authorization: Bearer {key.text}", f"?key={key.text}&x=1"):
        assert key.secret not in Redactor()(text)
