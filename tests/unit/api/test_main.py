"""Settings that the API process rejects before it opens anything."""

import pytest

from batchwright.api.main import main, parse_arguments


@pytest.fixture(autouse=True)
def _backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHWRIGHT_BACKENDS", '["http://127.0.0.1:9"]')


def test_without_a_backend_the_api_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BATCHWRIGHT_BACKENDS")
    assert main() == 2
    assert capsys.readouterr().err.splitlines() == [
        "No backend is configured: set BATCHWRIGHT_BACKENDS to a JSON list of URLs, such as "
        '["http://127.0.0.1:8080"], or BATCHWRIGHT_REGISTRY to a registry file.'
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_a_public_address_without_authentication_is_refused(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_API_HOST", host)
    assert main() == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("BATCHWRIGHT_API_HOST is wrong: ")
    assert line.endswith(f"(it is {host!r}).")


@pytest.mark.parametrize("auth", ["api_key", "trusted_header"])
def test_a_public_address_with_authentication_is_accepted(
    auth: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_API_HOST", "192.0.2.1")  # an address that no machine has
    monkeypatch.setenv("BATCHWRIGHT_AUTH", auth)
    assert main() == 1
    assert capsys.readouterr().err.startswith("The API cannot listen on 192.0.2.1:8000 ")


def test_no_address_is_refused_with_authentication_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHWRIGHT_API_HOST", "")
    monkeypatch.setenv("BATCHWRIGHT_AUTH", "api_key")
    assert main() == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AUTH", "basic"),
        ("TENANT_HEADER", "X Tenant"),
        ("TRUSTED_PROXIES", '["gateway"]'),
        ("AUTH_FAILURES_PER_MINUTE", "-1"),
        ("OIDC_ISSUER", "http://login.example.com"),
        ("OIDC_ISSUER", "https://"),
        ("OIDC_ISSUER", "https://user:secret@login.example.com"),
        ("OIDC_ISSUER", "https://login.example.com?realm=acme"),
        ("OIDC_TENANT_CLAIM", ""),
    ],
)
def test_a_wrong_setting_of_access_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"BATCHWRIGHT_{name}", value)
    assert main() == 2
    assert capsys.readouterr().err.startswith(f"BATCHWRIGHT_{name} is wrong: ")


def test_an_issuer_needs_the_audience_of_its_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_AUTH", "api_key")
    monkeypatch.setenv("BATCHWRIGHT_OIDC_ISSUER", "https://login.example.com")
    assert main() == 2
    assert capsys.readouterr().err.startswith("BATCHWRIGHT_OIDC_AUDIENCE is wrong: ")


@pytest.mark.parametrize("auth", ["none", "trusted_header"])
def test_an_issuer_needs_the_mode_in_which_tokens_are_accepted(
    auth: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_AUTH", auth)
    monkeypatch.setenv("BATCHWRIGHT_OIDC_ISSUER", "https://login.example.com")
    monkeypatch.setenv("BATCHWRIGHT_OIDC_AUDIENCE", "batches")
    assert main() == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("BATCHWRIGHT_OIDC_ISSUER is set, but ")
    assert line.endswith(f"(BATCHWRIGHT_AUTH is {auth!r}).")


def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_API_PORT", "many")
    assert main() == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("BATCHWRIGHT_API_PORT is wrong: ")


def test_an_argument_is_refused() -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_arguments(["--port", "80"])
    assert stopped.value.code == 2
