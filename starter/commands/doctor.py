"""`batchwright doctor`: whether everything that Batchwright needs is there and fits together."""

import asyncio

import typer
from rich.table import Table

from batchwright.settings import SettingsError, load
from starter.operate.doctor import examine
from starter.operate.findings import Finding, Level, Report, problem
from starter.options import JsonLine
from starter.output import Exit, print_json, stdout
from starter.tables import plain

_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}


def doctor(json: JsonLine = False) -> None:
    """Check what Batchwright runs on.

    Exits with 1 if there is a problem; warnings are none.
    """
    report = _report()
    if json:
        print_json(report)
    else:
        stdout().print(_table(report.findings))
    if not report.is_sound:
        raise typer.Exit(int(Exit.FAILED))


def _report() -> Report:
    try:
        chosen = load()
    except SettingsError as error:
        return Report(findings=[problem("settings", str(error))])
    return asyncio.run(examine(chosen))


def _table(findings: list[Finding]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        colour = _COLOURS[finding.level]
        sentence = plain(f"{finding.message} {finding.remedy}".rstrip())
        table.add_row(f"[{colour}]{finding.level}[/{colour}]", finding.part, sentence)
    return table
