"""Encryption of secrets that the database stores."""

import pytest

from batchwright.temporal.codec import PayloadKey
from batchwright.temporal.stored_secrets import StoredSecrets, StoredSecretUnreadable

OLD, NEW = PayloadKey.of("old", b"o" * 32), PayloadKey.of("new", b"n" * 32)


def test_a_stored_secret_is_encrypted_and_can_be_read_back() -> None:
    secrets = StoredSecrets([NEW])
    stored = secrets.encrypt("whsec_abc", "webhook_1")
    assert b"whsec" not in stored
    assert stored != secrets.encrypt("whsec_abc", "webhook_1")
    assert secrets.decrypt(stored, "webhook_1") == "whsec_abc"


def test_after_a_new_key_old_secrets_can_still_be_read() -> None:
    stored = StoredSecrets([OLD]).encrypt("whsec_abc", "webhook_1")
    assert StoredSecrets([NEW, OLD]).decrypt(stored, "webhook_1") == "whsec_abc"


def test_a_secret_of_another_row_cannot_be_read() -> None:
    stored = StoredSecrets([NEW]).encrypt("whsec_abc", "webhook_1")
    with pytest.raises(StoredSecretUnreadable, match="'new'"):
        StoredSecrets([NEW]).decrypt(stored, "webhook_2")


@pytest.mark.parametrize("damage", [b"\x01new\x00short", b"\x01new\x00" + 40 * b"x"])
def test_a_damaged_secret_is_unreadable(damage: bytes) -> None:
    with pytest.raises(StoredSecretUnreadable, match="'new'"):
        StoredSecrets([NEW]).decrypt(damage, "webhook_1")


def test_without_its_key_a_secret_is_unreadable() -> None:
    stored = StoredSecrets([OLD]).encrypt("whsec_abc", "webhook_1")
    with pytest.raises(StoredSecretUnreadable, match="'old', which BATCHWRIGHT_PAYLOAD_KEYS lacks"):
        StoredSecrets([NEW]).decrypt(stored, "webhook_1")


def test_secrets_that_were_stored_without_keys_can_be_read_with_keys() -> None:
    stored = StoredSecrets([]).encrypt("whsec_abc", "webhook_1")
    assert StoredSecrets([NEW]).decrypt(stored, "webhook_1") == "whsec_abc"
