"""Logs on stderr: constant messages, data in `extra`, as text for people or JSON for machines.

Secrets of the settings are struck out of every finished line, wherever they came from.
"""

import logging
import sys
from collections.abc import Iterable
from typing import TextIO
from urllib.parse import unquote, urlsplit

from pythonjsonlogger.json import JsonFormatter
from temporalio import activity, workflow

from batchwright.settings import Settings

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_JSON = "{asctime}{levelname}{name}{message}"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_CHATTY = ("aiohttp.access", "asyncio", "botocore", "httpcore", "httpx", "urllib3")


def configure(settings: Settings, stream: TextIO | None = None) -> None:
    """Sets up this process's logging, in place of whatever was set up before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Struck(_formatter(settings.log_format), secrets_of(settings)))
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    # The SDK would append what it knows of a run to every message; it is in `extra` as well.
    activity.logger.activity_info_on_message = False
    workflow.logger.workflow_info_on_message = False


def secrets_of(settings: Settings) -> list[str]:
    """Every secret in the settings, the longest first."""
    urls = [settings.database_url, *settings.backends]
    passwords = [urlsplit(url).password or "" for url in urls]
    found = {settings.backend_api_key, *passwords, *map(unquote, passwords)} - {""}
    return sorted(found, key=len, reverse=True)


class TextFormatter(logging.Formatter):
    """The message, then `key=value` for what `extra` carries."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        data = [f"{key}={value}" for key, value in vars(record).items() if key not in _STANDARD]
        return " ".join([super().formatMessage(record), *data])


class _Struck(logging.Formatter):
    """Another formatter's lines without the secrets."""

    def __init__(self, inner: logging.Formatter, secrets: Iterable[str]) -> None:
        super().__init__()
        self._inner = inner
        self._secrets = list(secrets)

    def format(self, record: logging.LogRecord) -> str:
        line = self._inner.format(record)
        for secret in self._secrets:
            line = line.replace(secret, "***")
        return line


def _formatter(log_format: str) -> logging.Formatter:
    if log_format == "text":
        return TextFormatter(_TEXT)
    names = {"asctime": "time", "levelname": "level", "name": "logger"}
    return JsonFormatter(_JSON, style="{", rename_fields=names)
