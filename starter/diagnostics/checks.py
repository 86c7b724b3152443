"""Checks of settings, PostgreSQL, object storage, and the issuer of tokens."""

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from batchwright import temporal
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.migrate import inspect
from batchwright.oidc.issuer import IssuerUnavailable, fetch_keys
from batchwright.rules.stored_objects.object_keys import LocalDirectory, parse_location
from batchwright.settings import Settings, SettingsError
from batchwright.settings.unknown_variables import unknown_variables
from batchwright.starter.diagnostics.clock_check import compare_clocks
from batchwright.starter.diagnostics.findings import Finding, ok, problem, warning
from batchwright.storage.base import StorageError
from batchwright.storage.factory import open_storage
from batchwright.storage.local import LocalStorage
from batchwright.storage.observed import StorageComponent
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal.connection import credentials

Clock = Callable[[], datetime]
_EXPIRY_WARNING = timedelta(days=14)
_LOW_DISK_BYTES = 1_000_000_000
_OTLP_GRPC_PORT = 4317


def now() -> datetime:
    return datetime.now(UTC)


async def check_settings(chosen: Settings, at: Clock) -> list[Finding]:
    try:
        temporal.check(chosen)
        expires = credentials.read(chosen).expires_at
    except SettingsError as error:
        return [problem("settings", str(error))]
    found = [ok("settings", "The settings are consistent, and all files that they name are readable.")]
    found += [
        warning(
            "settings",
            f"{name} is not a setting and is ignored.",
            f"Did you mean {meant}?" if meant else "Remove it.",
        )
        for name, meant in unknown_variables().items()
    ]
    if urlsplit(chosen.traces_url).netloc.endswith(f":{_OTLP_GRPC_PORT}"):
        message = f"Traces are sent over HTTP to {chosen.traces_url}, but port 4317 is usually for gRPC."
        remedy = "Use the collector's port for HTTP, usually 4318, in OTEL_EXPORTER_OTLP_ENDPOINT."
        found.append(warning("settings", message, remedy))
    if expires is None:
        return found
    left = expires - at()
    if left <= timedelta(0):
        message = f"Our certificate for Temporal expired at {expires:%Y-%m-%d %H:%M} UTC."
        found.append(problem("settings", message))
    elif left < _EXPIRY_WARNING:
        message = f"Our certificate for Temporal expires in {left.days} days."
        found.append(warning("settings", message, "Replace the files; running processes reload them."))
    return found


async def check_database(chosen: Settings, at: Clock) -> list[Finding]:
    asked = at()
    try:
        found = await inspect(chosen.database_url)
    except DatabaseUnavailable as error:
        return [problem("database", str(error))]
    answered = at()
    answers = ok("database", f"PostgreSQL {found.version} answers at {found.where}.")
    if found.mismatch:
        tables = problem("tables", found.mismatch)
    elif found.missing:
        tables = problem(
            "tables", f"The database lacks {', '.join(found.missing)}.", "Run `batchwright migrate`."
        )
    else:
        tables = ok("tables", "All migrations of this version are applied, and no others.")
    return [answers, tables, compare_clocks("PostgreSQL", found.now, asked=asked, answered=answered)]


async def check_storage(chosen: Settings, _: Clock) -> list[Finding]:
    """Check that objects can be written, and that the disk of a storage directory has some space.

    The directory is not created. If no process has used it yet, no object is written: only the permissions
    and the disk are checked.
    """
    where = chosen.storage or str(chosen.storage_dir)
    place = parse_location(chosen.storage) if chosen.storage else LocalDirectory(chosen.storage_dir)
    if isinstance(place, LocalDirectory) and not LocalStorage.is_initialized(place.path):
        return _check_unused_directory(place.path)
    try:
        async with open_storage(chosen, Metrics(), StorageComponent.API) as opened:
            await opened.check()
    except StorageError as error:
        return [problem("storage", str(error))]
    found = [ok("storage", f"Objects can be written, read and deleted in {where}.")]
    return [*found, *_check_disk(place.path)] if isinstance(place, LocalDirectory) else found


def _check_unused_directory(path: Path) -> list[Finding]:
    """Report a storage directory that does not exist, or that no process has used yet."""
    whole = path.absolute()
    existing = next(parent for parent in (whole, *whole.parents) if os.path.lexists(parent))
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        message = f"The storage directory {whole} cannot be used: {existing} is not a writable directory."
        return [problem("storage", message, "Correct its permissions or the setting of the storage.")]
    if existing == whole:
        message = f"No process has used the storage directory {whole} yet, so it was not checked."
        remedy = "If the API or a worker runs already, check that its disk is mounted."
    else:
        message = f"The storage directory {whole} does not exist yet, so it was not checked."
        remedy = (
            "The API or a worker creates it at its start. If one runs already, it uses another directory."
        )
    return [warning("storage", message, remedy), *_check_disk(existing)]


def _check_disk(path: Path) -> list[Finding]:
    free = shutil.disk_usage(path).free
    if free >= _LOW_DISK_BYTES:
        return []
    message = f"The disk of {path} has only {free / 1e6:,.1f} MB free, so larger objects may not fit."
    return [warning("storage", message, "Free some space or move the storage.")]


async def check_issuer(chosen: Settings, _: Clock) -> list[Finding]:
    """Check that the issuer of tokens returns the keys with which the API verifies tokens.

    Return an empty list if no issuer is configured.
    """
    issuer = chosen.oidc_issuer
    if not issuer:
        return []
    try:
        keys = await fetch_keys(issuer)
    except IssuerUnavailable as error:
        return [problem("issuer", f"{error}.", "Check BATCHWRIGHT_OIDC_ISSUER, and the issuer itself.")]
    return [ok("issuer", f"Tokens of {issuer} can be verified (usable keys: {len(keys)}).")]
