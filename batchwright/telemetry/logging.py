"""Logs on stderr: constant messages, data in `extra`, as text for people or JSON for machines.

An entry also has the facts of what is worked on (`context.py`) and, in a trace, its ids. Secrets are struck
wherever in the entry they are.
"""

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO, cast

from pythonjsonlogger.json import JsonFormatter
from temporalio import activity, workflow

from batchwright.settings import Settings
from batchwright.telemetry import tracing
from batchwright.telemetry.context import facts
from batchwright.telemetry.secrets import Redactor, redactor_of

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Their entries below a warning say what ours say, and some hold payloads.
_CHATTY = (
    "aiobotocore",
    "aiohttp.access",
    "asyncio",
    "botocore",
    "httpcore",
    "httpx",
    "temporalio.activity",
    "temporalio.worker",
    "urllib3",
    "uvicorn",
)
# What libraries add for formatters of their own; what Temporal's says of a run, our facts say too.
_FOREIGN = frozenset(
    {
        "__temporal_error_identifier",
        "color_message",
        "temporal_activity",
        "temporal_log",
        "temporal_update",
        "temporal_workflow",
    }
)
_OURS = frozenset({"__main__", "activities", "api", "batchwright", "starter", "worker"})
_OUR_WORKFLOWS = "temporalio.workflow"
_LAST = {name: place for place, name in enumerate(("batch_id", "request_id", "trace_id", "span_id"), 1)}


def configure(settings: Settings, stream: TextIO | None = None) -> None:
    """Sets up this process's logging, in place of whatever was set up before."""
    out = stream or sys.stderr
    handler = logging.StreamHandler(out)
    handler.addFilter(_enrich)
    handler.setFormatter(_formatter(settings.log_format, redactor_of(settings), is_terminal=out.isatty()))
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    # The SDK would append what it knows of a run to every message; it is in `extra` as well.
    activity.logger.activity_info_on_message = False
    workflow.logger.workflow_info_on_message = False


class TextFormatter(logging.Formatter):
    """`time level message key=value ...`, a traceback below; long ids come last, so that lines may be cut.

    An entry of a library names its logger before the message.
    """

    def __init__(self, redact: Redactor, *, is_terminal: bool) -> None:
        super().__init__()
        self._redact, self._is_terminal = redact, is_terminal

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Of the day only on a terminal, whose reader knows the date."""
        time = datetime.fromtimestamp(record.created)
        return time.strftime("%H:%M:%S" if self._is_terminal else "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        data = sorted(_data(record).items(), key=lambda item: _LAST.get(item[0], 0))
        shown = [f"{name}={_shown(self._redact.value(value, name))}" for name, value in data]
        head = f"{self.formatTime(record)} {record.levelname:<7} {_source(record.name)}{record.message}"
        return " ".join([head, *shown])

    def usesTime(self) -> bool:
        return False

    def format(self, record: logging.LogRecord) -> str:
        return self._redact(super().format(record))


class JsonLines(JsonFormatter):
    """One object a line; times are UTC."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._redact = redact

    def add_fields(
        self, log_data: dict[str, object], record: logging.LogRecord, message_dict: dict[str, object]
    ) -> None:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        log_data |= {"time": time.replace("+00:00", "Z"), "level": record.levelname, "logger": record.name}
        log_data |= {"message": record.message, **_data(record)}
        for name in ("exc_info", "stack_info"):
            if text := message_dict.get(name):
                log_data[name] = text
        for name, value in log_data.items():
            log_data[name] = self._redact.value(value, name)


def _enrich(record: logging.LogRecord) -> bool:
    """Adds what the entry's own data does not say."""
    known = facts() or _facts_of_workflow(record)
    for name, value in {**known, **_trace_of(record)}.items():
        vars(record).setdefault(name, value)
    return True


def _facts_of_workflow(record: logging.LogRecord) -> Mapping[str, str]:
    """Workflow code runs on threads without a context; the SDK's entries tell of which run they are."""
    for name in ("temporal_workflow", "temporal_activity"):
        told = getattr(record, name, None)
        if isinstance(told, dict):
            workflow_id = str(cast("dict[str, object]", told).get("workflow_id", ""))
            return {"batch_id": workflow_id.partition("/")[0]} if workflow_id else {}
    return {}


def _trace_of(record: logging.LogRecord) -> Mapping[str, str]:
    spans = tracing.spans()
    return spans.ids() if spans else {}


def _data(record: logging.LogRecord) -> dict[str, object]:
    return {
        name: value for name, value in vars(record).items() if name not in _STANDARD and name not in _FOREIGN
    }


def _source(logger: str) -> str:
    is_ours = logger.partition(".")[0] in _OURS or logger == _OUR_WORKFLOWS
    return "" if is_ours else f"{logger}: "


def _shown(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return repr(text) if not text or any(character.isspace() for character in text) else text


def _formatter(log_format: str, redact: Redactor, *, is_terminal: bool) -> logging.Formatter:
    return TextFormatter(redact, is_terminal=is_terminal) if log_format == "text" else JsonLines(redact)
