"""`batchwright submit`: uploads a file and creates a batch from it."""

import os
import shutil
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, BinaryIO, NamedTuple
from uuid import uuid4

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from batchwright.contracts.api_objects.openai import BatchObject, FileObject
from batchwright.contracts.temporal_payloads.batch import MAX_PRIORITY, MIN_PRIORITY
from batchwright.rules.input.oversized_input import group_id
from batchwright.rules.stored_objects.object_locations import SCHEME
from batchwright.starter.batch_groups import batches_exit_code, print_batches
from batchwright.starter.batch_output import batch_table, estimate_table
from batchwright.starter.client import Client
from batchwright.starter.client_errors import ClientError
from batchwright.starter.commands.batches.submit_group import (
    CreateBatch,
    GroupSubmission,
    divided_input,
    print_webhook_secret,
)
from batchwright.starter.commands.batches.watch import follow, follow_all
from batchwright.starter.input_format import format_problem
from batchwright.starter.options import (
    EndpointOption,
    Interval,
    Json,
    MaxCost,
    StartAt,
    Tenant,
    Url,
    Wait,
    WindowOption,
    api_client,
    key_value_pairs,
    settings_or_stop,
    start_value,
)
from batchwright.starter.output import ExitCode, exit_code, print_json, stderr, stdout, stop

_SHOWN_FROM_BYTES = 5 * 1024 * 1024
Metadata = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Stored with the batch; repeatable.", show_default=False),
]
Deduplicate = Annotated[bool, typer.Option("--deduplicate", help="Send identical requests only once.")]
Priority = Annotated[
    int | None,
    typer.Option(
        min=MIN_PRIORITY,
        max=MAX_PRIORITY,
        metavar="N",
        help="1 to 5; 5 is the most urgent of your batches. Default 3.",
        show_default=False,
    ),
]
_File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="Requests, one JSON object per line; or s3://bucket/key that the API may read.",
        show_default=False,
    ),
]
_Webhook = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Send an event to this URL when the batch ends.", show_default=False),
]
_Estimate = Annotated[
    bool, typer.Option("--estimate", help="Show lines, tokens and cost, and create no batch.")
]
_OutputLocation = Annotated[
    str | None,
    typer.Option(
        "--output-location",
        metavar="S3_URL",
        help="Also write the files to this prefix of a bucket, when the batch ends.",
        show_default=False,
    ),
]
_Headers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Passed on to the backends if the API allows it; repeatable.",
        show_default=False,
    ),
]
_IdempotencyKey = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        help="Repeat the command that printed this key, without a second batch.",
        show_default=False,
    ),
]


def submit(
    file: _File,
    endpoint: EndpointOption = "/v1/chat/completions",
    window: WindowOption = "24h",
    metadata: Metadata = None,
    deduplicate: Deduplicate = False,
    priority: Priority = None,
    max_cost: MaxCost = None,
    webhook: _Webhook = None,
    output_location: _OutputLocation = None,
    start_at: StartAt = None,
    header: _Headers = None,
    idempotency_key: _IdempotencyKey = None,
    estimate: _Estimate = False,
    wait: Wait = False,
    interval: Interval = 1.0,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Upload FILE and create a batch from it. An object s3://bucket/key is not uploaded."""
    pairs, headers = key_value_pairs(metadata, "--metadata"), key_value_pairs(header, "--header")
    if estimate:
        return _show_estimate(file, endpoint, json, url, tenant)
    with api_client(url, tenant) as client:
        create = partial(
            client.create,
            endpoint=endpoint,
            window=window,
            deduplicate=deduplicate,
            priority=priority,
            max_cost=max_cost,
            webhook=webhook,
            output_location=output_location,
            start_at=None if start_at is None else start_value(start_at),
            headers=headers,
        )
        if file.startswith(SCHEME):
            batch = _create_from_object(file, partial(create, metadata=pairs), idempotency_key)
        else:
            path = Path(file)
            with _input_file(path) as content:
                spool_dir = settings_or_stop(url=url, tenant=tenant).spool_dir
                parts = divided_input(client, path, content.file, max_cost, spool_dir)
                if len(parts) > 1:
                    # Options that are not given are left out: a new option does not change the ids of groups.
                    given = {name: value for name, value in create.keywords.items() if value is not None}
                    group = group_id(content.file, [given, pairs], idempotency_key or "")
                    submission = GroupSubmission(client, path, content.file, parts, group)
                    batches = submission.run(create, pairs, may_have_ended=idempotency_key is not None)
                    if wait:
                        batches = follow_all(client, batches, interval=interval, silent=json)
                    return _print_group(group, batches, wait, json)
                batch = _create_one(client, path, content, partial(create, metadata=pairs), idempotency_key)
        if not json:
            print_webhook_secret(batch)
        if wait:
            batch = _follow_one(client, batch, interval, json)
    _print_batch(batch, wait, json)


def _create_from_object(url: str, create: CreateBatch, idempotency_key: str | None) -> BatchObject:
    """Create one batch from an object that the API reads at `url`, and return the batch."""
    key = idempotency_key or f"submit-{uuid4().hex}"
    with _explain_how_to_repeat(key):
        return create(file_id=url, idempotency_key=key)


def _create_one(
    client: Client, path: Path, content: "_Content", create: CreateBatch, idempotency_key: str | None
) -> BatchObject:
    """Upload the input as one file, create one batch from it, and return the batch."""
    key = f"submit-{uuid4().hex}" if idempotency_key is None else idempotency_key
    with _explain_how_to_repeat(key):
        uploaded = _upload(client, path, content, key)
        # The file must be kept for a repeated command, because the API has stored it under the key.
        with delete_unless_used(client, uploaded) if idempotency_key is None else nullcontext():
            return create(file_id=uploaded.id, idempotency_key=key)


def _follow_one(client: Client, created: BatchObject, interval: float, json: bool) -> BatchObject:
    stderr().print(f"Created {created.id}.", style="dim", markup=False)
    batch = follow(client, created, interval=interval, silent=json)
    batch.x_batchwright.webhook = created.x_batchwright.webhook  # only this one has the secret
    return batch


def _print_batch(batch: BatchObject, wait: bool, json: bool) -> None:
    if json:
        print_json(batch)
    elif wait:
        stdout().print(batch_table(batch))
    else:
        print(batch.id)
        stderr().print(f"Follow it with `batchwright watch {batch.id}`.", style="dim")
    if wait:
        raise typer.Exit(int(exit_code(batch.status)))


def _print_group(group: str, batches: Sequence[BatchObject], wait: bool, json: bool) -> None:
    if wait or json:
        print_batches(group, batches, json)
    else:
        print(group)
        stderr().print(f"Follow all of it with `batchwright watch {group}`.", style="dim")
    if wait:
        raise typer.Exit(int(batches_exit_code(batches)))


def _show_estimate(file: str, endpoint: str, json: bool, url: str | None, tenant: str | None) -> None:
    """Print the estimated lines, tokens and cost of a batch with this input.

    A local file is first uploaded, and deleted from the API afterwards. If the input has errors, the command
    ends with an error.
    """
    with api_client(url, tenant) as client:
        if file.startswith(SCHEME):
            found = client.estimate(file, endpoint)
        else:
            uploaded = upload_input(client, Path(file), f"estimate-{uuid4().hex}")
            try:
                found = client.estimate(uploaded.id, endpoint)
            finally:
                client.delete_file(uploaded.id)
    if json:
        print_json(found)
    else:
        stdout().print(estimate_table(found))
    if found.errors is not None:
        count = len(found.errors.data)
        errors, them = ("1 error", "it") if count == 1 else (f"{count:,} errors", "them")
        stop(
            f"The batch would fail: {errors}. `batchwright validate {file}` shows {them}.",
            ExitCode.FAILED,
        )


@contextmanager
def _explain_how_to_repeat(key: str) -> Generator[None]:
    """Context manager that adds advice to the message of a ClientError: how to repeat the command safely.

    The advice is to repeat the command with `--idempotency-key KEY`. The repeated command then creates no
    second batch. If the API has rejected the request, no batch exists, and the message stays unchanged.

    Args:
        key: the idempotency key that the failed command has used.
    """
    try:
        yield
    except ClientError as error:
        if error.is_rejected:
            raise
        raise ClientError(
            f"{error} Repeat the command with --idempotency-key {key}: if the batch exists already, it "
            "returns that one.",
            is_transient=error.is_transient,
            code=error.code,
        ) from None


@contextmanager
def delete_unless_used(client: Client, uploaded: FileObject) -> Generator[None]:
    """Context manager for a block that creates a batch from the file `uploaded`.

    If the API rejects the batch, the uploaded file is deleted. After any other error, the file is kept,
    because the batch may have been created and may need the file.
    """
    try:
        yield
    except ClientError as error:
        if error.is_rejected:
            with suppress(ClientError):  # the first error is the useful one for the user
                client.delete_file(uploaded.id)
        raise


def upload_input(client: Client, path: Path, key: str) -> FileObject:
    """Upload the input file of a batch, and return the file object of the API.

    `key` is the idempotency key of the upload: if an earlier call used the same key, the file object of the
    earlier call is returned.
    """
    with _input_file(path) as content:
        return _upload(client, path, content, key)


class _Content(NamedTuple):
    """An open input file, and its size in bytes. The file is seekable."""

    file: BinaryIO
    size: int


def _upload(client: Client, path: Path, content: _Content, key: str) -> FileObject:
    shown = sys.stderr.isatty() and content.size >= _SHOWN_FROM_BYTES
    columns = (TextColumn("uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    progress = Progress(*columns, console=stderr(), transient=True, disable=not shown)
    content.file.seek(0)
    try:
        with progress, progress.wrap_file(content.file, content.size) as shown_file:
            return client.upload(shown_file, path.name, idempotency_key=key)
    except ClientError as error:
        if not error.is_rejected:
            raise
        hint = f" `batchwright validate {path}` shows the errors." if "jsonl" in str(error) else ""
        stop(f"{path} was rejected: {str(error).rstrip('.')}.{hint}")


@contextmanager
def _input_file(path: Path) -> Generator[_Content]:
    """Context manager that opens an input file. A pipe is first copied into a temporary file.

    If the file cannot be read or has a wrong format, the command ends with an error.
    """
    try:
        if why := format_problem(path, may_be_compressed=True):
            stop(why)
        with path.open("rb") as file:
            if file.seekable():
                yield _Content(file, os.fstat(file.fileno()).st_size)
                return
            with TemporaryFile() as whole:
                shutil.copyfileobj(file, whole)
                yield _Content(whole, whole.tell())
    except OSError as error:
        stop(f"{path} cannot be read: {error.strerror or error}.")
