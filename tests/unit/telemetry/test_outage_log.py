"""An outage is logged once. The next outage is logged again."""

import logging

import pytest

from batchwright.telemetry.outage_log import OutageLog


def test_each_outage_is_logged_once_with_its_first_error(caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog(logging.getLogger("batchwright.test"), "rows cannot be read")
    outages.succeeded()
    for error in ("first", "second"):
        outages.failed(OSError(error))
    outages.succeeded()
    outages.failed(OSError("third"))

    assert [record.message for record in caplog.records] == ["rows cannot be read"] * 2
    assert [vars(record)["error"] for record in caplog.records] == ["first", "third"]
