"""`batchwright doctor`: checks all dependencies and settings of an installation."""

import asyncio

import typer
from rich.table import Table

from batchwright.settings import SettingsError, load
from batchwright.starter.diagnostics.connections import dev_stack_hint
from batchwright.starter.diagnostics.examine import examine
from batchwright.starter.diagnostics.findings import DiagnosticReport, Level, problem
from batchwright.starter.options import JsonLine
from batchwright.starter.output import ExitCode, escaped, print_json, stderr, stdout

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
