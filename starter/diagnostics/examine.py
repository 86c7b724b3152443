"""Runs all checks of an installation, each with a time limit."""

import asyncio
from collections.abc import Awaitable

from batchwright.settings import Settings
from batchwright.starter.diagnostics import backend_checks, checks, temporal_checks
from batchwright.starter.diagnostics.backend_checks import BackendCheck
from batchwright.starter.diagnostics.checks import Clock
from batchwright.starter.diagnostics.findings import DiagnosticReport, Finding, problem

_TIMEOUT_SECONDS = 30.0


async def examine(chosen: Settings, at: Clock = checks.now) -> DiagnosticReport:
    """Run all checks of the installation, and return their findings.

    A check that takes longer than 30 seconds is reported as a problem. `at` returns the current time.
    """
    settings, database, storage, issuer, backends = await asyncio.gather(
        _with_timeout("settings", checks.check_settings(chosen, at)),
        _with_timeout("database", checks.check_database(chosen, at)),
        _with_timeout("storage", checks.check_storage(chosen, at)),
        _with_timeout("issuer", checks.check_issuer(chosen, at)),
        _check_backends_in_time(chosen, at),
    )
    temporal = await _with_timeout("temporal", temporal_checks.check_temporal(chosen, at, backends))
    return DiagnosticReport(findings=[*settings, *database, *storage, *issuer, *backends.findings, *temporal])


async def _with_timeout(part: str, check: Awaitable[list[Finding]]) -> list[Finding]:
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            return await check
    except TimeoutError:
        return [_timeout_finding(part)]


async def _check_backends_in_time(chosen: Settings, at: Clock) -> BackendCheck:
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            return await backend_checks.check_backends(chosen, at)
    except TimeoutError:
        return BackendCheck([_timeout_finding("backends")], [], all_models_known=False)


def _timeout_finding(part: str) -> Finding:
    return problem(part, f"No answer within {_TIMEOUT_SECONDS:.0f} s.")
