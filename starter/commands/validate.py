"""`batchwright validate`: what ingestion would say about a file, without uploading it."""

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from activities.ingest.offline import validate_file
from batchwright.contracts.openai import Endpoint, Profile
from batchwright.rules.checks import Limits
from batchwright.rules.validation import ValidationReport
from batchwright.settings import Settings
from starter.inputs import objection
from starter.options import settings_or_stop
from starter.output import Exit, stderr, stop


def validate(
    file: Annotated[Path, typer.Argument(help="Requests, one JSON object a line.", show_default=False)],
    endpoint: Annotated[
        Endpoint, typer.Option(metavar="<str>", help="Where each request is to go.")
    ] = Endpoint.CHAT_COMPLETIONS,
    profile: Annotated[
        Profile | None, typer.Option(help="What is accepted beyond OpenAI. [BATCHWRIGHT_PROFILE]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check FILE as a batch's input, offline.

    Exits with 0 good, 1 bad.
    """
    settings = settings_or_stop()
    try:
        report = validate_file(file, endpoint, _limits(settings), profile or settings.profile)
        why = "" if report.valid or json else objection(file)
    except OSError as error:
        stop(f"{file} cannot be read: {error.strerror or error}.")
    print(_as_json(report) if json else _as_text(file, report))
    if why:
        stderr().print(why, markup=False)
    if not report.valid:
        raise typer.Exit(int(Exit.FAILED))


def _limits(settings: Settings) -> Limits:
    return Limits(
        max_lines=settings.max_lines,
        max_line_bytes=settings.max_line_bytes,
        max_embedding_inputs=settings.max_embedding_inputs,
        one_model=settings.one_model_per_batch,
    )


def _as_json(report: ValidationReport) -> str:
    return jsonlib.dumps(
        {
            "valid": report.valid,
            "lines": report.lines,
            "error_count": report.error_count,
            "errors": [error.model_dump() for error in report.errors],
            "models": report.models,
        }
    )


def _as_text(file: Path, report: ValidationReport) -> str:
    lines = [
        f"{f'line {error.line}: ' if error.line is not None else ''}{error.message} ({error.code})"
        for error in report.errors
    ]
    models = ", ".join(f"{name or 'no model named'} {count:,}" for name, count in report.models.items())
    errors = "1 error" if report.error_count == 1 else f"{report.error_count:,} errors"
    verdict = errors if report.error_count else "good"
    count = "1 line" if report.lines == 1 else f"{report.lines:,} lines"
    lines.append(f"{file}: {count}, {verdict}{f' ({models})' if models else ''}")
    return "\n".join(lines)
