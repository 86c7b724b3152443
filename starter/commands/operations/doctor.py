"""`batchwright doctor`: checks all dependencies and settings of an installation."""

import asyncio
from collections.abc import Awaitable

import typer
from rich.table import Table

from batchwright.settings import Settings, SettingsError, load
from batchwright.starter.diagnostics import backend_checks, checks, temporal_checks
from batchwright.starter.diagnostics.checks import Clock
from batchwright.starter.diagnostics.connections import dev_stack_hint
from batchwright.starter.diagnostics.findings import DiagnosticReport, Finding, Level, problem
from batchwright.starter.options import JsonLine
from batchwright.starter.output import ExitCode, escaped, print_json, stderr, stdout

_TIMEOUT_SECONDS = 30.0


async def examine(chosen: Settings, at: Clock = checks.now) -> DiagnosticReport:
    """Run all checks of the installation, and return their findings.

    A check that takes longer than 30 seconds is reported as a problem. `at` returns the current time.
    """
    settings, database, storage, issuer, served = await asyncio.gather(
        _with_timeout("settings", checks.check_settings(chosen, at)),
        _with_timeout("database", checks.check_database(chosen, at)),
        _with_timeout("storage", checks.check_storage(chosen, at)),
        _with_timeout("issuer", checks.check_issuer(chosen, at)),
        _check_backends_in_time(chosen, at),
    )
    backends, models = served
    temporal = await _with_timeout("temporal", temporal_checks.check_temporal(chosen, at, models))
    return DiagnosticReport(findings=[*settings, *database, *storage, *issuer, *backends, *temporal])


async def _with_timeout(part: str, check: Awaitable[list[Finding]]) -> list[Finding]:
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            return await check
    except TimeoutError:
        return [_timeout_finding(part)]


async def _check_backends_in_time(chosen: Settings, at: Clock) -> tuple[list[Finding], list[str]]:
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            return await backend_checks.check_backends(chosen, at)
    except TimeoutError:
        return [_timeout_finding("backends")], []


def _timeout_finding(part: str) -> Finding:
    return problem(part, f"No answer within {_TIMEOUT_SECONDS:.0f} s.")


_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}


def doctor(json: JsonLine = False) -> None:
    """Check everything that Batchwright depends on.

    Exits with 1 if there is a problem. Warnings do not count.
    """
    try:
        chosen = load()
    except SettingsError as error:
        report = DiagnosticReport(findings=[problem("settings", str(error))])
    else:
        report = asyncio.run(examine(chosen))
    if json:
        print_json(report)
    else:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for finding in report.findings:
            colour = _COLOURS[finding.level]
            sentence = escaped(f"{finding.message} {finding.remedy}".rstrip())
            table.add_row(f"[{colour}]{finding.level}[/{colour}]", finding.part, sentence)
        stdout().print(table)
        if not report.is_sound and (hint := dev_stack_hint()):
            stderr().print(hint, markup=False)
    if not report.is_sound:
        raise typer.Exit(int(ExitCode.FAILED))
