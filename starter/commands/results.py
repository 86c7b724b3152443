"""`batchwright results`: the output or error lines of a batch."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, NoReturn

import typer

from starter.options import BatchId, Tenant, Url, connected
from starter.output import Exit, exit_code, stderr, stop
from starter.views import Batch


def results(
    batch_id: BatchId,
    errors: Annotated[bool, typer.Option("--errors", help="The failed lines instead.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file.", show_default=False)
    ] = None,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Print a batch's output lines, in the order of its input."""
    with connected(url, tenant) as client:
        batch = client.batch(batch_id)
        file_id = batch.error_file_id if errors else batch.output_file_id
        if file_id is None:
            return _explain_absence(batch, errors)
        with client.content(file_id) as pieces:
            _write(pieces, output)


def _explain_absence(batch: Batch, errors: bool) -> NoReturn:
    if not batch.status.is_terminal:
        stop(
            f"{batch.id} is {batch.status.value}; wait with `batchwright watch {batch.id}`.", Exit.UNFINISHED
        )
    if errors and batch.request_counts.failed == 0 and not batch.errors:
        stderr().print(f"No line of {batch.id} failed.")
        raise typer.Exit(int(exit_code(batch.status)))
    hint = "status" if batch.errors else "results --errors"
    stop(f"No line of {batch.id} succeeded; see `batchwright {hint} {batch.id}`.", Exit.FAILED)


def _write(pieces: Iterator[bytes], output: Path | None) -> None:
    try:
        if output is None:
            return _copy(pieces, sys.stdout.buffer)
        with output.open("wb") as file:
            _copy(pieces, file)
    except BrokenPipeError:
        # The reader has what it wanted, as in `results ID | head`; nothing more may be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        stop(f"{output} cannot be written: {error.strerror or error}.")


def _copy(pieces: Iterator[bytes], file: BinaryIO) -> None:
    for piece in pieces:
        file.write(piece)
    file.flush()
