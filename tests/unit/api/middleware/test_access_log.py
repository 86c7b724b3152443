"""The access log."""

import logging
from collections.abc import AsyncGenerator

import pytest

from tests.fakes.api import LINE, ApiFixture, open_api


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def test_a_request_is_one_entry_of_the_log(api: ApiFixture, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "batchwright.api.middleware.access_log"):
        await api.http.get("/v1/files/a%0Ab?secret=1")
        await api.http.get("/healthz")
        await api.upload(LINE)
    entries = [
        vars(record) for record in caplog.records if record.name == "batchwright.api.middleware.access_log"
    ]
    first, probe, sent = entries
    assert {entry["message"] for entry in entries} == {"request"}
    assert (first["method"], first["path"], first["status"]) == ("GET", "/v1/files/a%0Ab", 404)
    assert first["seconds"] >= 0
    assert (first["levelname"], probe["levelname"]) == ("INFO", "DEBUG")
    assert sent["received_bytes"] > len(LINE)
    assert sent["sent_bytes"] > 0


async def test_a_failed_request_is_logged_as_an_error(
    api: ApiFixture, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_down(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(api.served, "served", break_down)
    with caplog.at_level(logging.INFO, "batchwright.api.middleware.access_log"):
        answer = await api.http.get("/v1/models")
    [entry] = [
        vars(record) for record in caplog.records if record.name == "batchwright.api.middleware.access_log"
    ]
    assert (answer.status_code, entry["status"]) == (500, 500)
    assert "mistake" not in answer.text
