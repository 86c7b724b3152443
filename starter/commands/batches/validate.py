"""`batchwright validate`: checks an input file as the API's ingestion does, without uploading it."""

import json as jsonlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from batchwright.contracts.objects.openai import EstimateObject
from batchwright.contracts.registry.schema import prices_of
from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.input.line_checks import InputLimits
from batchwright.rules.input.validation import ValidationReport
from batchwright.rules.input.validation import validate as validate_pieces
from batchwright.rules.planning.estimate import InputEstimator, estimate_object
from batchwright.settings import Settings, load_registry
from batchwright.starter.input_format import format_problem
from batchwright.starter.options import settings_or_stop
from batchwright.starter.output import ExitCode, estimate_table, stderr, stdout, stop

_PIECE_BYTES = 1024 * 1024


def validate(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Requests, one JSON object per line.", show_default=False),
    ],
    endpoint: Annotated[
        Endpoint, typer.Option(metavar="<str>", help="Endpoint of the requests.")
    ] = Endpoint.CHAT_COMPLETIONS,
    profile: Annotated[
        Profile | None, typer.Option(help="How strictly OpenAI's rules apply. [BATCHWRIGHT_PROFILE]")
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Show tokens and cost, by the prices in BATCHWRIGHT_REGISTRY."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check FILE as the input of a batch, offline.

    Exits with 0 if the file is valid, and with 1 if it is not.
    """
    settings = settings_or_stop()
    limits = InputLimits(
        max_lines=settings.max_lines,
        max_line_bytes=settings.max_line_bytes,
        max_embedding_inputs=settings.max_embedding_inputs,
        one_model=settings.one_model_per_batch,
    )
    profile, estimated = profile or settings.profile, None
    try:
        if estimate:
            report, estimated = _estimate_file(file, endpoint, limits, profile, settings)
        else:
            report = validate_file(file, endpoint, limits, profile)
        why = "" if report.valid or json else format_problem(file)
    except OSError as error:
        stop(f"{file} cannot be read: {error.strerror or error}.")
    if json:
        fields = {
            "valid": report.valid,
            "lines": report.lines,
            "error_count": report.error_count,
            "errors": [error.model_dump() for error in report.errors],
            "models": report.models,
            **({"estimate": estimated.model_dump(mode="json")} if estimated else {}),
        }
        print(jsonlib.dumps(fields))
    else:
        print(_as_text(file, report))
        if estimated is not None:
            stdout().print(estimate_table(estimated))
    if why:
        stderr().print(why, markup=False)
    if not report.valid:
        raise typer.Exit(int(ExitCode.FAILED))


def validate_file(path: Path, endpoint: Endpoint, limits: InputLimits, profile: Profile) -> ValidationReport:
    """Check if the file is a valid input of a batch. Return a report with all its errors.

    Raises:
        OSError: the file cannot be read.
    """
    return validate_pieces(_pieces(path), endpoint, limits, profile)


def _estimate_file(
    path: Path, endpoint: Endpoint, limits: InputLimits, profile: Profile, settings: Settings
) -> tuple[ValidationReport, EstimateObject]:
    """Check if the file is a valid input of a batch. Return a report, and an estimate of the batch's cost.

    Raises:
        OSError: the file cannot be read.
    """
    registry = load_registry(settings)
    models = registry.models if registry else {}
    aliases = {alias: name for name, model in models.items() for alias in model.aliases}

    def canonical(name: str | None) -> str:
        named = name or settings.default_model
        return aliases.get(named, named)

    estimator = InputEstimator(endpoint, profile, limits, canonical, settings.max_models_per_batch)
    for piece in _pieces(path):
        estimator.feed(piece)
    estimator.finish()
    counts = {model: load.lines for model, load in estimator.models.items()}
    errors = estimator.errors
    report = ValidationReport(estimator.lines, errors.as_list(), errors.count, counts)
    gateway = registry.gateway if registry else None
    prices = prices_of(models)
    if gateway is not None and gateway.prices is not None:
        prices = dict.fromkeys(estimator.models, gateway.prices)
    return report, estimate_object(estimator, prices, {}, {})


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _as_text(file: Path, report: ValidationReport) -> str:
    lines = [
        f"{f'line {error.line}: ' if error.line is not None else ''}{error.message} ({error.code})"
        for error in report.errors
    ]
    models = ", ".join(f"{name or 'no model named'} {count:,}" for name, count in report.models.items())
    errors = "1 error" if report.error_count == 1 else f"{report.error_count:,} errors"
    verdict = errors if report.error_count else "valid"
    count = "1 line" if report.lines == 1 else f"{report.lines:,} lines"
    lines.append(f"{file}: {count}, {verdict}{f' ({models})' if models else ''}")
    return "\n".join(lines)
