"""Logs: data beside the message, fields of the current work, one format for all libraries, no secrets."""

import io
import json
import logging
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from batchwright.settings import Settings
from batchwright.telemetry.context import add_fields, bind_fields
from batchwright.telemetry.logging import configure_logging
from tests.fakes.settings import load


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    logging.captureWarnings(False)
    root.setLevel(level)
    root.handlers[:] = handlers


def settings_of(log_format: str) -> Settings:
    return load(
        log_format=log_format,
        backend_api_key="sk-secret",
        temporal_api_key="temporal-secret",
        database_url="postgresql://user:p%40ss@db/batchwright",
        otel_exporter_otlp_endpoint="http://me:hidden@collector",
        otel_exporter_otlp_headers="x-key=collector%2Dsecret, x-other=other-secret",
    )


@contextmanager
def stream_of(log_format: str) -> Generator[io.StringIO]:
    """Context manager that yields a log stream of a process whose settings contain secrets."""
    stream, root = io.StringIO(), logging.getLogger()
    handlers = root.handlers[:]
    root.handlers.clear()  # pytest's own, which `configure_logging` would close
    configure_logging(settings_of(log_format), stream)
    try:
        yield stream
    finally:
        root.handlers[:] = handlers


def logged(
    message: str,
    *arguments: object,
    log_format: str = "text",
    error: Exception | None = None,
    logger: str = "batchwright.test",
    **data: object,
) -> str:
    """Log one message and return its lines."""
    with stream_of(log_format) as stream:
        logging.getLogger(logger).warning(message, *arguments, extra=data, exc_info=error)
        return stream.getvalue().strip()


def test_text_shows_the_data_after_the_message_and_ids_last() -> None:
    line = logged("batch ended", batch_id="batch_1", lines=3, seconds=0.12345, reason="too slow")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
        r"WARNING batch ended lines=3 seconds=0\.123 reason='too slow' batch_id=batch_1",
        line,
    )


def test_text_names_the_logger_of_a_library_only() -> None:
    assert logged("oops", logger="asyncpg.pool").endswith("WARNING asyncpg.pool: oops")
    assert logged("oops", logger="batchwright.worker.process").endswith("WARNING oops")


def test_text_of_a_client_can_neither_control_the_terminal_nor_look_like_another_entry() -> None:
    forged = "no\x1b[2J\r\n2026-11-28 04:00:00 INFO    signed in user=admin"
    lines = logged("oops", custom_id="a\x1b]0;title\x07\x9b2J", error=ValueError(forged)).split("\n")
    assert lines[0].endswith("custom_id=a?]0;title??2J")
    assert lines[-2:] == ["  ValueError: no?[2J?", "  2026-11-28 04:00:00 INFO    signed in user=admin"]
    assert all(line.startswith("  ") for line in lines[1:])


def test_json_has_a_key_for_everything() -> None:
    entry = json.loads(
        logged("batch ended", log_format="json", batch_id="batch_1", lines=3, models=["a", "b"])
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry.pop("time"))
    assert entry == {
        "level": "WARNING",
        "logger": "batchwright.test",
        "message": "batch ended",
        "batch_id": "batch_1",
        "lines": 3,
        "models": ["a", "b"],
    }


def test_entries_have_the_ids_of_the_current_work() -> None:
    with bind_fields(batch_id="batch_1", tenant="acme"):
        with bind_fields(model="m"):
            inside = json.loads(logged("turn", log_format="json"))
        add_fields(file_id="file-1")
        after = json.loads(logged("end", log_format="json", tenant="said-by-itself"))
    assert [inside[name] for name in ("batch_id", "tenant", "model")] == ["batch_1", "acme", "m"]
    assert "model" not in after
    assert [after[name] for name in ("file_id", "tenant")] == ["file-1", "said-by-itself"]


def test_an_entry_of_workflow_code_names_its_batch() -> None:
    fields = {"workflow_id": "batch_1/llama", "run_id": "r", "attempt": 1}
    entry = json.loads(
        logged("late", log_format="json", logger="temporalio.workflow", temporal_workflow=fields)
    )
    assert entry["batch_id"] == "batch_1"
    assert "temporal_workflow" not in entry


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize(
    "secret",
    ["sk-secret", "temporal-secret", "p%40ss", "p@ss", "hidden", "collector-secret", "other-secret"],
)
def test_no_secret_of_the_settings_is_logged(log_format: str, secret: str) -> None:
    error = RuntimeError(f"refused {secret}")
    lines = logged(
        f"calling with {secret}",
        log_format=log_format,
        error=error,
        header=f"X {secret}",
        deep={"list": [secret]},
    )
    assert secret not in lines
    assert "calling with ***" in lines


PLANTED = "pL4nt3d-S3cr3t-v4lu3"


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {PLANTED}",
        f"authorization: Basic {PLANTED}==",
        f"{{'authorization': 'Bearer {PLANTED}', 'accept': '*/*'}}",
        f"[(b'authorization', b'Bearer {PLANTED}')]",
        f'{{"Authorization": "{PLANTED}"}}',
        f"curl -H 'Authorization: Bearer {PLANTED}' http://x",
        f"sent bearer {PLANTED} to x",
        f"postgresql://user:{PLANTED}@db:5432/name",
        f"connect to https://user:{PLANTED}@gateway/v1?x=1 failed",
        f"password={PLANTED} host=db",
        f"password='{PLANTED} with spaces' host=db",
        f"{{'api_key': '{PLANTED}'}}",
        f"https://api/v1/models?api_key={PLANTED}&x=1",
        f"AWS_SECRET_ACCESS_KEY={PLANTED}",
        f"x-api-key: {PLANTED}",
        f"aws_session_token = {PLANTED}",
        f"the key sk-{PLANTED} is wrong",
        f"hf_{PLANTED.replace('-', '')}",
    ],
)
def test_text_that_looks_like_a_secret_is_redacted_everywhere(log_format: str, text: str) -> None:
    planted = [PLANTED, PLANTED.replace("-", "")]
    for lines in (
        logged(text, log_format=log_format),
        logged("called %s", text, log_format=log_format),
        logged("called", log_format=log_format, error=RuntimeError(text)),
        logged("called", log_format=log_format, what=text, deep=[{"inside": text}]),
    ):
        assert not [secret for secret in planted if secret in lines]
        assert "***" in lines


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_signature_of_a_callback_token_is_redacted_in_any_text(log_format: str) -> None:
    job, signature = f"{'ab' * 16}.0.1796000000", "Sig-" + "x_" * 19 + "y"
    text = f"the job of https://api/tasks%2Fcallback%2F{job}.{signature} has failed"
    lines = logged(text, log_format=log_format, error=RuntimeError(text))
    assert signature not in lines
    assert f"{job}.***" in lines


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("name", ["api_key", "password", "authorization", "aws_secret_access_key"])
def test_fields_named_like_a_secret_are_redacted(log_format: str, name: str) -> None:
    data: dict[str, object] = {name: PLANTED}
    with stream_of(log_format) as stream:
        logging.getLogger("batchwright.test").warning("called", extra=data)
        assert PLANTED not in stream.getvalue()
    assert PLANTED not in logged("called", log_format=log_format, headers={name: [PLANTED]})


@pytest.mark.parametrize(
    "text",
    [
        "prompt_tokens=12 max_tokens: 5",
        "the backend answered 401: check BATCHWRIGHT_BACKEND_API_KEY",
        "http://127.0.0.1:8000/v1/batches?after=a@b",
        "key=tenants/1/batches/2 fairness_key=acme",
        "authorization failed, basic checks passed",
        "arn:aws:s3:::bucket/prefix",
    ],
)
def test_text_that_is_not_secret_stays_readable(text: str) -> None:
    assert logged(text).endswith(text)


def test_each_entry_is_one_line_of_json_even_with_a_traceback() -> None:
    line = logged("failed", log_format="json", error=RuntimeError("why"))
    assert "why" in json.loads(line)["exc_info"]


@pytest.mark.parametrize("logger", ["uvicorn.error", "temporalio.worker._activity", "botocore.hooks"])
def test_libraries_log_in_the_same_format_and_only_warnings(logger: str) -> None:
    with stream_of("json") as stream:
        logging.getLogger(logger).info("small talk")
        logging.getLogger(logger).warning("trouble", extra={"color_message": "\x1b[36mtrouble"})
        [line] = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["logger"], entry["message"]) == (logger, "trouble")
    assert "color_message" not in entry
