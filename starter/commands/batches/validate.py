"""`batchwright validate`: checks an input file with the rules of the API, without uploading the file."""

import asyncio
import json as jsonlib
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from batchwright.contracts.api_objects.estimates import EstimateObject
from batchwright.contracts.model_registry.registry_config import prices_of
from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.input.input_validator import InputValidator, ValidationReport
from batchwright.rules.input.input_validator import validate as validate_pieces
from batchwright.rules.planning.cost_estimate import InputEstimator, estimate_object
from batchwright.rules.stored_objects.object_locations import SCHEME, parse_object
from batchwright.settings import Settings, load_registry
from batchwright.starter.batch_output import estimate_table
from batchwright.starter.input_format import format_problem
from batchwright.starter.options import settings_or_stop
from batchwright.starter.output import ExitCode, stderr, stdout, stop
from batchwright.storage.base import StorageError
from batchwright.storage.referenced_input import InputObjects, InputRefused, ReferencedInput, StoredBytes
from batchwright.storage.spill.spilled_bytes import SpillSpace

_PIECE_BYTES = 1024 * 1024


def validate(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Requests, one JSON object per line; or s3://bucket/key.", show_default=False
        ),
    ],
    endpoint: Annotated[
        Endpoint, typer.Option(metavar="ENDPOINT", help="Endpoint of the requests.")
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
    """Check FILE as the input of a batch, offline. An object in S3 is read with your own credentials.

    Exits with 0 if the file is valid, and with 1 if it is not.
    """
    settings = settings_or_stop()
    limits = settings.input_limits
    profile, estimated = profile or settings.profile, None
    is_object, why = file.startswith(SCHEME), ""
    try:
        with (
            closing(_object_pieces(file, settings) if is_object else _pieces(Path(file))) as pieces,
            closing(SpillSpace(settings.spool_dir, "The check")) as space,
        ):
            if estimate:
                validator = InputValidator(endpoint, profile, limits, space.new_bytes)
                report, estimated = _estimate(pieces, validator, endpoint, settings)
            else:
                report = validate_pieces(pieces, endpoint, limits, profile, space.new_bytes)
        if not (is_object or report.valid or json):
            why = format_problem(Path(file))
    except InputRefused as refused:
        report = ValidationReport(0, [refused.error], 1, {})
    except StorageError as error:
        stop(str(error))
    except OSError as error:
        stop(f"{file} cannot be read: {error.strerror or error}.")
    if json:
        print(_as_json(report, estimated))
    else:
        print(_as_text(file, report))
        if estimated is not None:
            stdout().print(estimate_table(estimated))
    if why:
        stderr().print(why, markup=False)
    if not report.valid:
        raise typer.Exit(int(ExitCode.FAILED))


def _estimate(
    pieces: Iterable[bytes], validator: InputValidator, endpoint: Endpoint, settings: Settings
) -> tuple[ValidationReport, EstimateObject]:
    """Check the input of a batch. Return a report, and an estimate of the batch's tokens and cost."""
    registry = load_registry(settings)
    models = registry.models if registry else {}
    aliases = {alias: name for name, model in models.items() for alias in model.aliases}

    def canonical(name: str | None) -> str:
        named = name or settings.default_model
        return aliases.get(named, named)

    estimator = InputEstimator(endpoint, validator, canonical, settings.max_models_per_batch)
    for piece in pieces:
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


def _pieces(path: Path) -> Generator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _object_pieces(url: str, settings: Settings) -> Generator[bytes]:
    """Yield the content of an object in S3 in pieces, decompressed if it is compressed.

    Raises:
        InputRefused: the object cannot be the input of a batch.
        StorageError: S3 does not respond.
    """
    try:
        parse_object(url)
    except ValueError as error:
        stop(f"{url} is not the URL of an object: {error}.")
    objects = InputObjects(settings)
    content = ReferencedInput(objects, url, StoredBytes()).pieces()

    async def next_piece() -> bytes:
        return await anext(content, b"")

    with asyncio.Runner() as runner:
        try:
            while piece := runner.run(next_piece()):
                yield piece
        finally:
            runner.run(content.aclose())
            runner.run(objects.aclose())


def _as_json(report: ValidationReport, estimated: EstimateObject | None) -> str:
    fields = {
        "valid": report.valid,
        "lines": report.lines,
        "error_count": report.error_count,
        "errors": [error.model_dump() for error in report.errors],
        "models": report.models,
        **({"estimate": estimated.model_dump(mode="json")} if estimated else {}),
    }
    return jsonlib.dumps(fields)


def _as_text(file: str, report: ValidationReport) -> str:
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
