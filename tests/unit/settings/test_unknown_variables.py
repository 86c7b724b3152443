"""Environment variables that resemble settings, or were settings in the past, cause a warning."""

import logging

import pytest

from batchwright.settings.unknown_variables import unknown_variables, warn_about_unknown_variables


@pytest.mark.parametrize(
    ("given", "meant"),
    [("BACKEND", "BACKENDS"), ("MAX_LINE", "MAX_LINES"), ("TEMPORAL_ADRESS", "TEMPORAL_ADDRESS")],
)
def test_a_misspelt_setting_is_reported_with_the_right_name(
    given: str, meant: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(f"BATCHWRIGHT_{given}", "1")
    assert unknown_variables()[f"BATCHWRIGHT_{given}"] == f"BATCHWRIGHT_{meant}"
    with caplog.at_level(logging.WARNING):
        warn_about_unknown_variables()
    suggestions = {getattr(record, "variable", ""): getattr(record, "meant", "") for record in caplog.records}
    assert suggestions[f"BATCHWRIGHT_{given}"] == f"BATCHWRIGHT_{meant}"


def test_a_removed_setting_is_reported_without_another_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_OBSERVE_SECONDS", "1")
    with caplog.at_level(logging.WARNING):
        warn_about_unknown_variables()
    [record] = [each for each in caplog.records if vars(each)["variable"] == "BATCHWRIGHT_OBSERVE_SECONDS"]
    assert not hasattr(record, "meant")


@pytest.mark.parametrize(
    "name",
    [
        "BATCHWRIGHT_API_SERVICE_HOST",
        "BATCHWRIGHT_API_SERVICE_PORT",
        "BATCHWRIGHT_API_SERVICE_PORT_HTTP",
        "BATCHWRIGHT_API_PORT_80_TCP_ADDR",
        "BATCHWRIGHT_PORT",
        "BATCHWRIGHT_IMAGE",
        "BATCHWRIGHT_TEST_S3_URL",
        "BATCHWRIGHT_MAX_LINES",
        "BATCHWRIGH_BACKENDS",
    ],
)
def test_foreign_variables_and_valid_settings_are_not_reported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    assert name not in unknown_variables()
