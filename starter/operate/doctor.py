"""All checks of an installation, at once where they do not build on each other."""

import asyncio
from collections.abc import Awaitable

from batchwright.settings import Settings
from starter.operate import backends, cluster, parts
from starter.operate.findings import Finding, Report, problem
from starter.operate.parts import Clock

_PATIENCE_SECONDS = 30.0


async def examine(chosen: Settings, at: Clock = parts.now) -> Report:
    """Takes half a minute a part at most."""
    settings, database, storage, served = await asyncio.gather(
        _in_time("settings", parts.settings(chosen, at)),
        _in_time("database", parts.database(chosen, at)),
        _in_time("storage", parts.storage(chosen, at)),
        _served(chosen, at),
    )
    asked, models = served
    temporal = await _in_time("temporal", cluster.temporal(chosen, at, models))
    return Report(findings=[*settings, *database, *storage, *asked, *temporal])


async def _in_time(part: str, check: Awaitable[list[Finding]]) -> list[Finding]:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await check
    except TimeoutError:
        return [_silent(part)]


async def _served(chosen: Settings, at: Clock) -> tuple[list[Finding], list[str]]:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await backends.backends(chosen, at)
    except TimeoutError:
        return [_silent("backends")], []


def _silent(part: str) -> Finding:
    return problem(part, f"No answer within {_PATIENCE_SECONDS:.0f} s.")
