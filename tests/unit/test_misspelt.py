"""Variables that are nearly settings are told of; those of others are left alone."""

import logging

import pytest

from batchwright.settings.misspelt import misspelt, warn_of_misspelt


@pytest.mark.parametrize(
    ("given", "meant"),
    [("BACKEND", "BACKENDS"), ("MAX_LINE", "MAX_LINES"), ("TEMPORAL_ADRESS", "TEMPORAL_ADDRESS")],
)
def test_a_misspelt_setting_is_told_with_the_one_that_is_meant(
    given: str, meant: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(f"BATCHWRIGHT_{given}", "1")
    assert misspelt()[f"BATCHWRIGHT_{given}"] == f"BATCHWRIGHT_{meant}"
    with caplog.at_level(logging.WARNING):
        warn_of_misspelt()
    told = {getattr(record, "variable", ""): getattr(record, "meant", "") for record in caplog.records}
    assert told[f"BATCHWRIGHT_{given}"] == f"BATCHWRIGHT_{meant}"


@pytest.mark.parametrize(
    "name",
    [
        "BATCHWRIGHT_API_SERVICE_PORT",
        "BATCHWRIGHT_API_PORT_80_TCP_ADDR",
        "BATCHWRIGHT_PORT",
        "BATCHWRIGHT_IMAGE",
        "BATCHWRIGHT_TEST_S3_URL",
        "BATCHWRIGHT_MAX_LINES",
        "BATCHWRIGH_BACKENDS",
    ],
)
def test_variables_of_others_and_settings_are_not_taken_for_misspelt_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    assert name not in misspelt()
