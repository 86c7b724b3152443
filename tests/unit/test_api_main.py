"""What the API's process refuses before it opens anything."""

import pytest

from api.__main__ import main


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_an_address_others_can_reach_is_refused(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_API_HOST", host)
    assert main([]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("BATCHWRIGHT_API_HOST is wrong: ")
    assert line.endswith(f"(it is {host!r}).")


def test_an_address_others_can_reach_is_taken_where_the_network_is_trusted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_API_HOST", "192.0.2.1")  # an address that no machine has
    monkeypatch.setenv("BATCHWRIGHT_API_TRUSTED_NETWORK", "true")
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("The API cannot listen on 192.0.2.1:8000 ")


def test_no_address_is_refused_in_a_trusted_network_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHWRIGHT_API_HOST", "")
    monkeypatch.setenv("BATCHWRIGHT_API_TRUSTED_NETWORK", "true")
    assert main([]) == 2


def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_API_PORT", "many")
    assert main([]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("BATCHWRIGHT_API_PORT is wrong: ")


def test_an_argument_is_refused() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--port", "80"])
    assert stopped.value.code == 2
