"""Checks of what is no server of Temporal's: settings, PostgreSQL, storage."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from batchwright import temporal
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.inspection import inspect
from batchwright.settings import Settings, SettingsError
from batchwright.settings.misspelt import misspelt
from batchwright.storage.base import StorageError
from batchwright.storage.observed import Component
from batchwright.storage.opening import open_storage
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal import credentials
from starter.operate.findings import Finding, clock, ok, problem, warning

Clock = Callable[[], datetime]
_SOON = timedelta(days=14)


def now() -> datetime:
    return datetime.now(UTC)


async def settings(chosen: Settings, at: Clock) -> list[Finding]:
    try:
        temporal.check(chosen)
        expires = credentials.read(chosen).expires_at
    except SettingsError as error:
        return [problem("settings", str(error))]
    found = [ok("settings", "They fit together, and every file they name can be read.")]
    found += [
        warning("settings", f"{name} is no setting and is ignored.", f"Did you mean {meant}?")
        for name, meant in misspelt().items()
    ]
    if expires is not None and expires - at() < _SOON:
        found.append(_expiring(expires, at()))
    return found


async def database(chosen: Settings, at: Clock) -> list[Finding]:
    try:
        found = await inspect(chosen.database_url)
    except DatabaseUnavailable as error:
        return [problem("database", str(error))]
    ours = at()
    answers = ok("database", f"PostgreSQL {found.version} answers at {found.where}.")
    if found.mismatch:
        tables = problem("tables", found.mismatch)
    elif found.missing:
        tables = problem(
            "tables", f"The database lacks {', '.join(found.missing)}.", "Run `batchwright migrate`."
        )
    else:
        tables = ok("tables", "All migrations of this version are applied, and no others.")
    return [answers, tables, clock("PostgreSQL", found.now, ours)]


async def storage(chosen: Settings, _: Clock) -> list[Finding]:
    where = chosen.storage or str(chosen.storage_dir)
    try:
        async with open_storage(chosen, Metrics(), Component.API) as opened:
            await opened.check()
    except StorageError as error:
        return [problem("storage", str(error))]
    return [ok("storage", f"Objects can be written, read and deleted in {where}.")]


def _expiring(expires: datetime, at: datetime) -> Finding:
    if expires <= at:
        return problem("settings", f"Our certificate for Temporal expired at {expires:%Y-%m-%d %H:%M} UTC.")
    days = (expires - at).days
    return warning(
        "settings",
        f"Our certificate for Temporal expires in {days} days.",
        "Replace the files; running processes take them up.",
    )
