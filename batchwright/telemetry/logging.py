"""Writes log entries to stderr, as text for people or as JSON for machines.

The message of an entry is a constant text, and its data is in the argument `extra`. Every entry also has the
fields of the current work (`context.py`) and the ids of the current trace span. Secrets are redacted.
"""

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO, cast

from pythonjsonlogger.json import JsonFormatter
from temporalio import activity, workflow

from batchwright.rules.terminal_text import terminal_text
from batchwright.settings import Settings
from batchwright.telemetry import tracing
from batchwright.telemetry.context import current_fields
from batchwright.telemetry.redaction import Redactor, redactor_for

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Loggers whose entries below WARNING repeat our own entries; some of those contain payloads.
_VERBOSE_LOGGERS = (
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
# Fields that libraries add for their own formatters; Temporal's fields repeat ours.
_LIBRARY_FIELDS = frozenset(
    {
        "__temporal_error_identifier",
        "color_message",
        "temporal_activity",
        "temporal_log",
        "temporal_update",
        "temporal_workflow",
    }
)
_HIDDEN_FIELDS = _STANDARD | _LIBRARY_FIELDS
_OWN_PACKAGES = frozenset({"__main__", "batchwright"})
_WORKFLOW_LOGGER = "temporalio.workflow"
_TRAILING_FIELDS = {
    name: place for place, name in enumerate(("batch_id", "request_id", "trace_id", "span_id"), 1)
}


def configure_logging(settings: Settings, stream: TextIO | None = None) -> None:
    """Configure logging for this process, in place of any earlier configuration.

    Log entries go to `stream`, or to stderr if it is None.
    """
    out = stream or sys.stderr
    handler = logging.StreamHandler(out)
    handler.addFilter(_add_context)
    redact = redactor_for(settings)
    if settings.log_format == "text":
        handler.setFormatter(TextFormatter(redact, is_terminal=out.isatty()))
    else:
        handler.setFormatter(JsonLinesFormatter(redact))
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in _VERBOSE_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    # By default the SDK appends its fields to every message; `extra` has them as well.
    activity.logger.activity_info_on_message = False
    workflow.logger.workflow_info_on_message = False


class TextFormatter(logging.Formatter):
    """A formatter that writes each log entry as `time level message key=value ...`.

    A traceback follows on indented lines. Text from clients and backends cannot look like another entry:
    after each line break in the text come spaces, and control characters are replaced. Long ids are at the
    end of the line, where a narrow terminal cuts them off.
    """

    def __init__(self, redact: Redactor, *, is_terminal: bool) -> None:
        super().__init__()
        self._redact, self._is_terminal = redact, is_terminal

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the local time of the entry. The date is included if the output is not a terminal."""
        time = datetime.fromtimestamp(record.created)
        return time.strftime("%H:%M:%S" if self._is_terminal else "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = sorted(_extra_fields(record).items(), key=lambda item: _TRAILING_FIELDS.get(item[0], 0))
        pairs = [f"{name}={_format_value(self._redact.value(value, name))}" for name, value in fields]
        head = f"{self.formatTime(record)} {record.levelname:<7} {_source(record.name)}{record.message}"
        return " ".join([head, *pairs])

    def usesTime(self) -> bool:
        return False

    def format(self, record: logging.LogRecord) -> str:
        return terminal_text(self._redact(super().format(record))).replace("\n", "\n  ")


class JsonLinesFormatter(JsonFormatter):
    """A formatter that writes each log entry as one line with a JSON object. Times are in UTC."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._redact = redact

    def add_fields(
        self, log_data: dict[str, object], record: logging.LogRecord, message_dict: dict[str, object]
    ) -> None:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        log_data |= {"time": time.replace("+00:00", "Z"), "level": record.levelname, "logger": record.name}
        log_data |= {"message": record.message, **_extra_fields(record)}
        for name in ("exc_info", "stack_info"):
            if text := message_dict.get(name):
                log_data[name] = text
        for name, value in log_data.items():
            log_data[name] = self._redact.value(value, name)


def _add_context(record: logging.LogRecord) -> bool:
    """Add the fields of the current work and the ids of the current trace span to a log entry.

    Fields that the entry already has keep their values. The function is used as a logging filter. It always
    returns True, so no entry is dropped.
    """
    fields = current_fields() or _workflow_fields(record)
    spans = tracing.spans()
    for name, value in {**fields, **(spans.current_ids() if spans else {})}.items():
        vars(record).setdefault(name, value)
    return True


def _workflow_fields(record: logging.LogRecord) -> Mapping[str, str]:
    """Return the batch id as a log field; an empty mapping if the entry has no workflow id.

    The workflow id is in the fields that Temporal's SDK adds to entries of workflow code. Workflow code needs
    this function, because `current_fields` is empty in its threads.
    """
    for name in ("temporal_workflow", "temporal_activity"):
        info = getattr(record, name, None)
        if isinstance(info, dict):
            workflow_id = str(cast("dict[str, object]", info).get("workflow_id", ""))
            return {"batch_id": workflow_id.partition("/")[0]} if workflow_id else {}
    return {}


def _extra_fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _HIDDEN_FIELDS}


def _source(logger: str) -> str:
    is_own = logger.partition(".")[0] in _OWN_PACKAGES or logger == _WORKFLOW_LOGGER
    return "" if is_own else f"{logger}: "


def _format_value(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return repr(text) if not text or any(character.isspace() for character in text) else text
