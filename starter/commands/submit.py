"""`batchwright submit`: a file becomes a batch."""

import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, BinaryIO

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from starter.client import Client, ClientError
from starter.commands.watch import follow
from starter.inputs import objection
from starter.options import Interval, Json, Tenant, Url, Wait, connected
from starter.output import describe, exit_code, print_json, stderr, stdout, stop
from starter.views import FileObject

_SHOWN_FROM_BYTES = 5 * 1024 * 1024


def submit(
    file: Annotated[Path, typer.Argument(help="Requests, one JSON object a line.", show_default=False)],
    endpoint: Annotated[str, typer.Option(help="Where each request goes.")] = "/v1/chat/completions",
    window: Annotated[str, typer.Option(help="Time for all of it: 30m, 6h, 24h, 7d.")] = "24h",
    metadata: Annotated[
        list[str] | None, typer.Option(help="key=value; repeatable.", show_default=False)
    ] = None,
    deduplicate: Annotated[
        bool, typer.Option("--deduplicate", help="Ask lines that ask the same once.")
    ] = False,
    header: Annotated[
        list[str] | None,
        typer.Option(
            help="name=value, for the backends, where the API's settings pass it on; repeatable.",
            show_default=False,
        ),
    ] = None,
    wait: Wait = False,
    interval: Interval = 1.0,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Upload FILE and make a batch of it."""
    pairs, headers = _pairs(metadata or [], "--metadata"), _pairs(header or [], "--header")
    with connected(url, tenant) as client:
        uploaded = _upload(client, file)
        with _kept_only_for_a_batch(client, uploaded):
            batch = client.create(
                file_id=uploaded.id,
                endpoint=endpoint,
                window=window,
                metadata=pairs,
                deduplicate=deduplicate,
                headers=headers,
            )
        if wait:
            stderr().print(f"Made {batch.id}.", style="dim", markup=False)
            batch = follow(client, batch, interval=interval, silent=json)
    if json:
        print_json(batch)
    elif wait:
        stdout().print(describe(batch))
    else:
        print(batch.id)
        stderr().print(f"Follow it with `batchwright watch {batch.id}`.", style="dim")
    if wait:
        raise typer.Exit(int(exit_code(batch.status)))


def _pairs(texts: list[str], option: str) -> dict[str, str] | None:
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            stop(f"{option} {text!r} is not {'key' if option == '--metadata' else 'name'}=value.")
        pairs[key] = value
    return pairs or None


@contextmanager
def _kept_only_for_a_batch(client: Client, uploaded: FileObject) -> Generator[None]:
    """Deletes the file where the API refuses the batch. One that may have been made keeps it."""
    try:
        yield
    except ClientError as error:
        if error.refused:
            with suppress(ClientError):  # why there is no batch is what the user should hear
                client.delete_file(uploaded.id)
        raise


def _upload(client: Client, path: Path) -> FileObject:
    try:
        if why := objection(path):
            stop(why)
        with path.open("rb") as opened, _sized(opened) as (file, size):
            shown = sys.stderr.isatty() and size >= _SHOWN_FROM_BYTES
            columns = (TextColumn("uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            progress = Progress(*columns, console=stderr(), transient=True, disable=not shown)
            with progress, progress.wrap_file(file, size) as shown_file:
                return client.upload(shown_file, path.name)
    except OSError as error:
        stop(f"{path} cannot be read: {error.strerror or error}.")
    except ClientError as error:
        if not error.refused:
            raise
        hint = f" `batchwright validate {path}` shows where." if "jsonl" in str(error) else ""
        stop(f"{path} is not taken: {str(error).rstrip('.')}.{hint}")


@contextmanager
def _sized(file: BinaryIO) -> Generator[tuple[BinaryIO, int]]:
    """The file with its bytes' number. A pipe is read to its end first: only then is the number known."""
    if file.seekable():
        yield file, os.fstat(file.fileno()).st_size
        return
    with TemporaryFile() as whole:
        shutil.copyfileobj(file, whole)
        size = whole.tell()
        whole.seek(0)
        yield whole, size
