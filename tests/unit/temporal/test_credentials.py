"""Certificates, private keys and API keys: reading, matching, error messages."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from batchwright.settings import SettingsError, load
from batchwright.temporal.connection.credentials import Credentials, read


class Pki:
    def __init__(self, folder: Path) -> None:
        self.ca, self.cert, self.key, self.api_key = (folder / name for name in ("ca", "crt", "key", "api"))
        authority = trustme.CA()
        issued = authority.issue_cert("worker.example", not_after=datetime(2030, 1, 1, tzinfo=UTC))
        self.other = authority.issue_cert("other.example").private_key_pem.bytes()
        self.ca.write_bytes(authority.cert_pem.bytes())
        self.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.api_key.write_text("sesame\n")


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


def test_without_any_setting_there_is_no_tls() -> None:
    assert read(load()) == Credentials(tls=None, api_key=None)


def test_tls_without_a_ca_trusts_the_system_ca() -> None:
    tls = read(load(temporal_tls=True)).tls
    assert tls is not None
    assert tls.server_root_ca_cert is None


def test_everything_is_read_from_its_file(pki: Pki) -> None:
    found = read(
        load(
            temporal_tls_ca_file=pki.ca,
            temporal_tls_cert_file=pki.cert,
            temporal_tls_key_file=pki.key,
            temporal_tls_server_name="temporal.internal",
            temporal_api_key_file=pki.api_key,
        )
    )
    assert found.tls is not None
    assert (found.tls.domain, found.api_key) == ("temporal.internal", "sesame")
    assert found.tls.client_private_key == pki.key.read_bytes()
    assert found.expires_at == datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "name", ["temporal_tls_ca_file", "temporal_api_key_file", "temporal_tls_server_name"]
)
def test_any_of_the_tls_settings_turns_tls_on(name: str, pki: Pki) -> None:
    value = {"temporal_tls_ca_file": pki.ca, "temporal_api_key_file": pki.api_key}.get(name, "name")
    assert read(load(**{name: value})).tls is not None


def test_the_api_key_is_in_no_representation(pki: Pki) -> None:
    settings = load(temporal_api_key="sesame")
    assert "sesame" not in repr(settings)
    assert "sesame" not in str(settings)
    assert "sesame" not in repr(read(settings))
    assert read(settings).api_key == "sesame"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("ca", None, "BATCHWRIGHT_TEMPORAL_TLS_CA_FILE is wrong: {path} cannot be read: No such file"),
        ("ca", "no", "TLS_CA_FILE is wrong: there is no PEM certificate"),
        ("cert", "", "TLS_CERT_FILE is wrong: there is no PEM certificate"),
        ("key", "", "TLS_KEY_FILE is wrong: there is no unencrypted PEM"),
        ("api_key", "\n", "API_KEY_FILE is wrong: {path} is empty"),
        ("api_key", "two words", "a key is one word of ASCII characters"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(
    name: str, content: str | None, expected: str, pki: Pki
) -> None:
    path: Path = getattr(pki, name)
    path.unlink()
    if content is not None:
        path.write_text(content)
    settings = load(
        temporal_tls_ca_file=pki.ca,
        temporal_tls_cert_file=pki.cert,
        temporal_tls_key_file=pki.key,
        temporal_api_key_file=pki.api_key,
    )
    with pytest.raises(SettingsError) as caught:
        read(settings)
    assert expected.format(path=path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_of_another_certificate_is_refused(pki: Pki) -> None:
    pki.key.write_bytes(pki.other)
    with pytest.raises(SettingsError, match="TLS_KEY_FILE is wrong: the key does not belong to"):
        read(load(temporal_tls_cert_file=pki.cert, temporal_tls_key_file=pki.key))


def test_a_key_with_a_password_is_refused(pki: Pki) -> None:
    key = serialization.load_pem_private_key(pki.key.read_bytes(), None)
    pki.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    with pytest.raises(SettingsError, match="there is no unencrypted PEM private key in the file"):
        read(load(temporal_tls_cert_file=pki.cert, temporal_tls_key_file=pki.key))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temporal_tls_cert_file": "crt"}, "set it together with BATCHWRIGHT_TEMPORAL_TLS_CERT_FILE"),
        ({"temporal_tls_key_file": "key"}, "set it together with BATCHWRIGHT_TEMPORAL_TLS_CERT_FILE"),
        ({"temporal_api_key": "a", "temporal_api_key_file": "b"}, "is also set: set only one of them"),
        ({"temporal_tls": False, "temporal_tls_ca_file": "ca"}, "TLS_CA_FILE is set, which means TLS"),
        ({"temporal_tls": False, "temporal_tls_server_name": "n"}, "SERVER_NAME is set, which means TLS"),
        (
            {"temporal_tls": False, "temporal_api_key": "sesame", "temporal_address": "far.example:7233"},
            "BATCHWRIGHT_TEMPORAL_API_KEY is set and would be sent unencrypted",
        ),
        ({"temporal_address": "https://temporal.example:7233"}, "it is not host:port"),
        ({"temporal_address": "temporal.example"}, "it is not host:port"),
        ({"temporal_address": "temporal.example:0"}, "it is not host:port"),
    ],
)
def test_contradictory_settings_are_refused_without_showing_a_secret(
    settings: dict[str, object], expected: str
) -> None:
    with pytest.raises(SettingsError, match=expected) as caught:
        load(**settings)
    assert "sesame" not in str(caught.value)


def test_a_proxy_on_loopback_may_get_the_key_without_tls() -> None:
    found = read(load(temporal_tls=False, temporal_api_key="sesame", temporal_address="127.0.0.1:7233"))
    assert found == Credentials(tls=None, api_key="sesame")
