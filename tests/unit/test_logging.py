"""Logs: data beside the message, and no secrets."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from batchwright.settings import load
from batchwright.telemetry.logging import configure


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def logged(message: str, *, log_format: str, error: Exception | None = None, **data: object) -> str:
    """The line that an entry becomes, with secrets in the settings."""
    stream = io.StringIO()
    handlers, root = logging.getLogger().handlers[:], logging.getLogger()
    root.handlers.clear()  # pytest's own, which `configure` would close
    settings = load(
        log_format=log_format,
        backend_api_key="sk-secret",
        database_url="postgresql://user:p%40ss@db/batchwright",
        backends=["http://me:hidden@gateway"],
    )
    configure(settings, stream)
    logging.getLogger("batchwright.test").warning(message, extra=data, exc_info=error)
    root.handlers[:] = handlers
    return stream.getvalue().strip()


def test_text_shows_the_data_after_the_message() -> None:
    line = logged("batch ended", log_format="text", batch_id="batch_1", lines=3)
    assert line.endswith("WARNING batchwright.test: batch ended batch_id=batch_1 lines=3")


def test_json_has_a_key_for_everything() -> None:
    entry = json.loads(logged("batch ended", log_format="json", batch_id="batch_1", lines=3))
    del entry["time"]
    assert entry == {
        "level": "WARNING",
        "logger": "batchwright.test",
        "message": "batch ended",
        "batch_id": "batch_1",
        "lines": 3,
    }


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("secret", ["sk-secret", "p%40ss", "p@ss", "hidden"])
def test_no_secret_is_logged(log_format: str, secret: str) -> None:
    error = RuntimeError(f"refused {secret}")
    line = logged(f"calling with {secret}", log_format=log_format, error=error, header=f"Bearer {secret}")
    assert secret not in line
    assert "calling with ***" in line


def test_each_entry_is_one_line_of_json_even_with_a_traceback() -> None:
    line = logged("failed", log_format="json", error=RuntimeError("why"))
    assert "why" in json.loads(line)["exc_info"]
