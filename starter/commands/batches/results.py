"""`batchwright results`: prints the output or error lines of a batch, also while the batch is running."""

import sys
import time
from codecs import getincrementaldecoder
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from itertools import chain
from pathlib import Path
from typing import Annotated, BinaryIO, NoReturn, Protocol

import typer

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.rules.results.seen_lines import SeenLines
from batchwright.rules.terminal_text import terminal_json
from batchwright.starter.batch_groups import batches_exit_code, batches_of
from batchwright.starter.client import Client
from batchwright.starter.client_errors import ClientError
from batchwright.starter.options import BatchOrGroup, Tenant, Url, api_client, settings_or_stop
from batchwright.starter.output import ExitCode, discard_stdout, stderr, stop
from batchwright.storage.base import StorageUnavailable
from batchwright.storage.spill.spilled_bytes import SpillSpace

_OUTAGE_SECONDS = 60.0
_ID = slice(len('{"id":"'), len('{"id":"batch_req_') + 32)  # position of the id in a result line


def results(
    batch_id: BatchOrGroup,
    errors: Annotated[bool, typer.Option("--errors", help="Print the failed lines.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print results as they come, until the batch has ended.")
    ] = False,
    settled: Annotated[
        bool,
        typer.Option("--settled", help="With --follow: as they settle, not in input order."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file.", show_default=False)
    ] = None,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Print the output lines of a batch in input order."""
    if settled and not follow:
        stop("--settled requires --follow: the results of an ended batch are in input order.")
    with api_client(url, tenant) as client:
        batches = batches_of(client, batch_id)
        if follow:
            spool_dir = settings_or_stop(url=url, tenant=tenant).spool_dir
            lines = (
                follow_results(
                    client, batch.id, failed=errors, in_input_order=not settled, spool_dir=spool_dir
                )
                for batch in batches
            )
            try:
                _write(chain.from_iterable(lines), output)
            except KeyboardInterrupt:
                stop(f"{batch_id} continues.", ExitCode.UNFINISHED)
            except StorageUnavailable as error:
                stop(str(error))
            raise typer.Exit(int(batches_exit_code([client.batch(batch.id) for batch in batches])))
        if len(batches) > 1:
            for batch in batches:
                require_files(batch)
        files = [batch.error_file_id if errors else batch.output_file_id for batch in batches]
        if not any(files):
            return _explain_absence(batch_id, batches, errors)
        _write(_contents(client, files), output)


def _contents(client: Client, file_ids: Iterable[str | None]) -> Iterator[bytes]:
    for file_id in file_ids:
        if file_id is not None:
            with client.content(file_id) as pieces:
                yield from pieces


class ResultSource(Protocol):
    """The methods of the API client that `follow_results` calls."""

    def batch(self, batch_id: str) -> BatchObject: ...

    def live_results(
        self, batch_id: str, *, failed: bool, after: str | None, in_input_order: bool
    ) -> AbstractContextManager[Iterator[bytes]]: ...


def follow_results(
    client: ResultSource,
    batch_id: str,
    *,
    failed: bool,
    in_input_order: bool = True,
    retry_seconds: float = 1.0,
    spool_dir: Path | None = None,
) -> Generator[bytes]:
    """Yield the results of a batch until it has ended. Each item consists of one or more whole lines.

    If the connection breaks or the API ends a response early, a new request is sent:

    - In input order, the new request continues after the last whole line.
    - Otherwise, the new request reads all results again, and lines that were already yielded are skipped.

    Args:
        failed: True for the lines of the error file, False for the lines of the output file.
        in_input_order: True for the order of the input, False for the order in which results become final.
        retry_seconds: seconds to wait before a new request if the last one failed or returned no new lines.
        spool_dir: directory for the ids of yielded lines if these ids do not fit into memory; None for the
            system's temporary directory. Only used if `in_input_order` is False.

    Raises:
        ClientError: the API was unavailable for more than a minute, or rejected a call.
        StorageUnavailable: the ids of yielded lines do not fit into memory, and the local disk is full or
            cannot be used.
    """
    with closing(SpillSpace(spool_dir, "Following results")) as space:
        seen = None if in_input_order else SeenLines(space.new_bytes)
        yield from _follow(client, batch_id, failed, seen, retry_seconds)


def _follow(
    client: ResultSource, batch_id: str, failed: bool, seen: SeenLines | None, retry_seconds: float
) -> Generator[bytes]:
    """Yield the results of a batch, as `follow_results` does.

    Args:
        seen: ids of the lines that were already yielded; None to yield the results in input order.
    """
    last: str | None = None
    deadline: float | None = None  # set while the API is unavailable
    while True:
        rest, has_new_lines = b"", False
        if seen is not None:
            seen.sort()
        try:
            batch = client.batch(batch_id)
            has_ended = batch.status.is_terminal and not batch.x_batchwright.files_pending
            with client.live_results(
                batch_id, failed=failed, after=last, in_input_order=seen is None
            ) as pieces:
                deadline = None
                for piece in pieces:
                    lines, newline, rest = (rest + piece).rpartition(b"\n")
                    if newline and seen is None:
                        has_new_lines = True
                        last = lines[lines.rfind(b"\n") + 1 :][_ID].decode()
                        yield lines + newline
                    elif newline and seen is not None and (new := _new_lines(lines, seen)):
                        has_new_lines = True
                        yield new
            if has_ended:  # it ended before the response began, so no line is missing
                return
            if has_new_lines:
                continue
        except ClientError as error:
            deadline = deadline or time.monotonic() + _OUTAGE_SECONDS
            if not error.is_transient or time.monotonic() >= deadline:
                raise
        time.sleep(retry_seconds)


def _new_lines(lines: bytes, seen: SeenLines) -> bytes:
    """Return the lines that were in no earlier response of the API, and add the ids of these lines to `seen`.

    Each returned line ends with a newline. Lines of the same response are not compared with each other,
    because a response contains each line only once.
    """
    new = [line for line in lines.split(b"\n") if not seen.is_seen(line[_ID])]
    seen.add(line[_ID] for line in new)
    return b"".join(line + b"\n" for line in new)


def require_files(batch: BatchObject) -> None:
    """Check that the batch has ended and its files are written. Otherwise, end the command with an error."""
    if not batch.status.is_terminal:
        stop(
            f"{batch.id} is {batch.status.value}; wait with `batchwright watch {batch.id}`.",
            ExitCode.UNFINISHED,
        )
    if batch.x_batchwright.files_pending:
        stop(
            f"{batch.id} is {batch.status.value}, and its files are not written yet: object storage was not "
            "available. Try again later.",
            ExitCode.UNFINISHED,
        )


def _explain_absence(id: str, batches: Sequence[BatchObject], errors: bool) -> NoReturn:
    """End the command because no batch has the requested file, and print why.

    Args:
        id: id of the batch, or of the group that consists of these batches.
        errors: True if the error files were requested, False for the output files.
    """
    for batch in batches:
        require_files(batch)
    kind = "error" if errors else "output"
    for batch in batches:
        if batch.errors:
            stop(f"{id} has no {kind} file; `batchwright status {batch.id}` shows why.", ExitCode.FAILED)
    if errors:
        stderr().print(f"No line of {id} failed.", markup=False)
        raise typer.Exit(int(batches_exit_code(batches)))
    stop(f"No line of {id} succeeded; see `batchwright results --errors {id}`.", ExitCode.FAILED)


def terminal_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield JSON lines for a terminal, with control characters as escapes.

    Args:
        pieces: the lines as bytes, divided at any positions, even inside a character.
    """
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    for piece in pieces:
        yield terminal_json(decoder.decode(piece)).encode()


def _write(pieces: Iterator[bytes], output: Path | None) -> None:
    try:
        if output is None:
            is_shown = sys.stdout.isatty()
            return _copy(terminal_lines(pieces) if is_shown else pieces, sys.stdout.buffer)
        with output.open("wb") as file:
            _copy(pieces, file)
    except BrokenPipeError:
        discard_stdout()
    except OSError as error:
        if output is None:
            discard_stdout()
        stop(f"{output or 'The output'} cannot be written: {error.strerror or error}.")


def _copy(pieces: Iterator[bytes], file: BinaryIO) -> None:
    for piece in pieces:
        file.write(piece)
        file.flush()
