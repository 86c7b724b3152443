"""Checks of what is no server of Temporal's: settings, PostgreSQL, storage, backends."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx

from batchwright import temporal
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.inspection import inspect
from batchwright.inference.catalog import Catalog
from batchwright.inference.client import InferenceClient, ListingFailed
from batchwright.inference.engine import AnswerTooLarge, Engine, Request, Target
from batchwright.inference.opening import open_engine
from batchwright.settings import Settings, SettingsError
from batchwright.storage.base import StorageError
from batchwright.storage.observed import Component
from batchwright.storage.opening import open_storage
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal import credentials
from starter.operate.findings import Finding, clock, ok, problem, warning

Clock = Callable[[], datetime]
_SOON = timedelta(days=14)
_DATE_SECONDS = 5.0
_DATE_BYTES = 16 * 1024 * 1024


def now() -> datetime:
    return datetime.now(UTC)


async def settings(chosen: Settings, at: Clock) -> list[Finding]:
    try:
        temporal.check(chosen)
        expires = credentials.read(chosen).expires_at
    except SettingsError as error:
        return [problem("settings", str(error))]
    found = [ok("settings", "They fit together, and every file they name can be read.")]
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


async def backends(chosen: Settings, at: Clock) -> tuple[list[Finding], list[str]]:
    """What was found, and the models that are served."""
    if chosen.registry is not None:
        told = "They are in the registry, and are not asked from here."
        where = "Look at batchwright_backend_up of the workers; `batchwright models` lists them."
        return [warning("backends", told, where)], sorted(Catalog(chosen).configured)
    if not chosen.backends:
        return [
            warning("backends", "There is none.", "Set BATCHWRIGHT_BACKENDS or BATCHWRIGHT_REGISTRY.")
        ], []
    engine = open_engine(chosen)
    found: list[Finding] = []
    models: set[str] = set()
    try:
        client = InferenceClient(engine, chosen)
        for url in (url.removesuffix("/v1") for url in chosen.backends):
            told, listed = await _backend(client, url)
            found += [told, *await _clock_of(engine, url, at)]
            models.update(listed)
    finally:
        await engine.aclose()
    return found, sorted(models)


async def _backend(client: InferenceClient, url: str) -> tuple[Finding, list[str]]:
    try:
        models = await client.models(url)
    except ListingFailed as error:
        return problem("backends", f"{error}.", "Check BATCHWRIGHT_BACKENDS, and the backend itself."), []
    if not models:
        return warning("backends", f"{url} lists no models.", "Load one: no line can be sent there."), []
    return ok("backends", f"{url} serves {', '.join(sorted(models))}."), models


async def _clock_of(engine: Engine, url: str, at: Clock) -> list[Finding]:
    """Nothing where it does not tell its time."""
    try:
        request = Request(b"GET", Target.of(f"{url}/v1/models"), [])
        answer = await engine.exchange(request, most_bytes=_DATE_BYTES, seconds=_DATE_SECONDS)
        told = parsedate_to_datetime(answer.headers[b"date"].decode("ascii"))
    except (httpx.HTTPError, httpx.InvalidURL, AnswerTooLarge, TimeoutError, KeyError, ValueError):
        return []
    return [clock(url, told, at())]


def _expiring(expires: datetime, at: datetime) -> Finding:
    if expires <= at:
        return problem("settings", f"Our certificate for Temporal expired at {expires:%Y-%m-%d %H:%M} UTC.")
    days = (expires - at).days
    return warning(
        "settings",
        f"Our certificate for Temporal expires in {days} days.",
        "Replace the files; running processes take them up.",
    )
