"""Encrypted payloads, and where the setting says that their keys are stored: in a variable or in a file."""

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload

from batchwright.settings import SettingsError, load
from batchwright.temporal import check
from batchwright.temporal.codec import (
    ENCODING,
    KEY_ID,
    EncryptionCodec,
    KeylessCodec,
    PayloadDecryptionError,
    PayloadKey,
    load_keys,
)

OLD, NEW = PayloadKey.of("2026-05", bytes(32)), PayloadKey.of("2026-11", bytes(range(32)))
SECRET = base64.b64encode(bytes(range(32))).decode()


def a_payload() -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=b'{"tenant":"blue"}')


@given(st.binary(max_size=1000), st.binary(max_size=50))
async def test_a_payload_is_decrypted_to_its_original(data: bytes, encoding: bytes) -> None:
    payload = Payload(metadata={"encoding": encoding}, data=data)
    codec = EncryptionCodec([NEW])
    [sealed] = await codec.encode([payload])
    assert await codec.decode([sealed]) == [payload]


async def test_only_the_key_id_of_an_encrypted_payload_is_readable() -> None:
    [sealed] = await EncryptionCodec([NEW]).encode([a_payload()])
    assert dict(sealed.metadata) == {"encoding": ENCODING, KEY_ID: b"2026-11"}
    assert b"blue" not in sealed.SerializeToString()
    assert b"json" not in sealed.SerializeToString()


async def test_equal_payloads_have_different_ciphertexts() -> None:
    first, second = await EncryptionCodec([NEW]).encode([a_payload(), a_payload()])
    assert first.data != second.data


async def test_the_first_key_encrypts_and_all_decrypt() -> None:
    [before] = await EncryptionCodec([OLD]).encode([a_payload()])
    both = EncryptionCodec([NEW, OLD])
    [after] = await both.encode([a_payload()])
    assert after.metadata[KEY_ID] == b"2026-11"
    assert await both.decode([before, after]) == [a_payload(), a_payload()]


async def test_payloads_from_before_encryption_are_read_unchanged() -> None:
    assert await EncryptionCodec([NEW]).decode([a_payload()]) == [a_payload()]


@pytest.mark.parametrize("codec", [KeylessCodec(), EncryptionCodec([NEW])], ids=["no-keys", "another-key"])
async def test_a_missing_key_is_named(codec: KeylessCodec | EncryptionCodec) -> None:
    sealed = await EncryptionCodec([OLD]).encode([a_payload()])
    with pytest.raises(
        PayloadDecryptionError, match="the key '2026-05', which BATCHWRIGHT_PAYLOAD_KEYS lacks"
    ):
        await codec.decode(sealed)


@pytest.mark.parametrize("length", [0, 11, 12, 20, -1])
async def test_a_truncated_payload_cannot_be_decrypted(length: int) -> None:
    [sealed] = await EncryptionCodec([NEW]).encode([a_payload()])
    cut = Payload(metadata=sealed.metadata, data=sealed.data[:length])
    with pytest.raises(PayloadDecryptionError, match="it is damaged, or another key has the same id"):
        await EncryptionCodec([NEW]).decode([cut])


async def test_another_key_with_the_same_id_cannot_decrypt_it() -> None:
    sealed = await EncryptionCodec([NEW]).encode([a_payload()])
    with pytest.raises(PayloadDecryptionError, match="another key has the same id"):
        await EncryptionCodec([PayloadKey.of("2026-11", bytes(32))]).decode(sealed)


def test_keys_come_from_files_and_variables_in_base64_and_hex(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_text(SECRET + "\n")
    monkeypatch.setenv("OLD_KEY", bytes(range(32)).hex())
    keys = load_keys(load(payload_keys=[f"new=file:{path}", "old=env:OLD_KEY"]))
    assert [key.id for key in keys] == ["new", "old"]
    assert keys[0].check == keys[1].check != OLD.check


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "it is not 32 bytes in base64 or hex"),
        ("c2hvcnQ=", "it is not 32 bytes in base64 or hex"),
        (None, "cannot be read: No such file or directory"),
        ("\u00e4" * 40, "is not text"),
    ],
)
def test_an_invalid_key_is_named_and_not_shown(content: str | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content, "utf-8")
    with pytest.raises(SettingsError) as caught:
        check(load(payload_keys=[f"new=file:{path}"]))
    assert str(caught.value).startswith("BATCHWRIGHT_PAYLOAD_KEYS is wrong: the key 'new': ")
    assert expected in str(caught.value)
    assert not content or content not in str(caught.value)


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLD_KEY", raising=False)
    with pytest.raises(SettingsError, match="the key 'old': the variable OLD_KEY is not set"):
        load_keys(load(payload_keys=["old=env:OLD_KEY"]))


@pytest.mark.parametrize("references", [[SECRET], ["a=nowhere:x"], ["=file:x"], ["a=file:"], ["a b=env:X"]])
def test_a_reference_of_another_form_is_refused_and_not_shown(references: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load(payload_keys=references)
    assert str(caught.value).endswith("a key is not given as id=file:PATH or id=env:NAME.")
    assert references[0] not in str(caught.value)


def test_two_keys_with_one_id_are_refused() -> None:
    with pytest.raises(SettingsError, match="two keys have the id 'a'"):
        load(payload_keys=["a=env:ONE", "a=env:TWO"])
