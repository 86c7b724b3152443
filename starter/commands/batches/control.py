"""Commands that show and control existing batches.

They are `batchwright status`, `list`, `cancel`, `pause`, `resume`, `retry`, `max-cost` and `delete`.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated

import typer

from batchwright.contracts.api_objects.openai import BatchObject, DeletedBatch
from batchwright.contracts.temporal_payloads.batch import RerunKind
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.input.oversized_input import is_group
from batchwright.rules.results import error_tally
from batchwright.starter.batch_groups import (
    all_batches_of,
    batches_exit_code,
    batches_of,
    for_each,
    print_batches,
)
from batchwright.starter.batch_output import batch_list_table
from batchwright.starter.client import Client
from batchwright.starter.client_errors import ClientError
from batchwright.starter.commands.batches.watch import follow_all
from batchwright.starter.options import (
    BatchId,
    BatchOrGroup,
    Interval,
    Json,
    Tenant,
    Url,
    Wait,
    api_client,
    key_value_pairs,
)
from batchwright.starter.output import ExitCode, print_json, stderr, stdout, stop

_TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]
Window = Annotated[
    str | None,
    typer.Option(
        "--window", help="Completion window of a new batch. [that of the first]", show_default=False
    ),
]
MaxCost = Annotated[
    str | None,
    typer.Option(
        metavar="AMOUNT", help="Cap on the cost of a new batch. [that of the first]", show_default=False
    ),
]


def status(batch_id: BatchOrGroup, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show one batch.

    Exits with 0 if it is completed, with 1 if it failed, expired or was cancelled, and with 2 if it is not
    finished yet.
    """
    with api_client(url, tenant) as client:
        batches = batches_of(client, batch_id)
    print_batches(batch_id, batches, json)
    raise typer.Exit(int(batches_exit_code(batches)))


def list_batches(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of batches.")] = 20,
    after: Annotated[
        str | None, typer.Option(help="Only batches older than this one.", show_default=False)
    ] = None,
    status: Annotated[
        BatchStatus | None,
        typer.Option(metavar="STATUS", help="Only batches with this status.", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Only batches with lines of this model.", show_default=False)
    ] = None,
    created_after: Annotated[
        datetime | None,
        typer.Option(
            metavar="TIME", formats=_TIMES, help="Only of this local time or later.", show_default=False
        ),
    ] = None,
    created_before: Annotated[
        datetime | None,
        typer.Option(metavar="TIME", formats=_TIMES, help="Only before this local time.", show_default=False),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Only batches with this pair; repeatable.", show_default=False
        ),
    ] = None,
    custom_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only batches with a line with this custom_id.", show_default=False),
    ] = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """List batches, newest first."""
    pairs = key_value_pairs(metadata, "--metadata") or {}
    filters = {
        "status": status,
        "model": model,
        "custom_id": custom_id,
        "created_after": created_after and int(created_after.timestamp()),
        "created_before": created_before and int(created_before.timestamp()),
        **{f"metadata[{key}]": value for key, value in pairs.items()},
    }
    query = {name: value for name, value in filters.items() if value is not None}
    with api_client(url, tenant) as client:
        page = client.batches({"limit": limit, **({"after": after} if after else {}), **query})
        while page.has_more and page.last_id and not page.data:  # the search has not come to the batch yet
            page = client.batches({"limit": limit, "after": page.last_id, **query})
    if json:
        return print_json(page)
    if page.data:
        stdout().print(batch_list_table(page.data))
    else:
        empty = "There are no batches yet; `batchwright submit FILE` creates one."
        stderr().print("No batch matches all of these options; use fewer." if query else empty)
    if page.has_more and page.last_id:
        stderr().print(f"There are more: --after {page.last_id}", style="dim")


def cancel(
    batch_id: BatchOrGroup,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it has ended; exit 0 if it was cancelled.")
    ] = False,
    interval: Interval = 1.0,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Cancel a batch; results so far are kept.

    In a group, batches that have already ended stay unchanged.
    """
    with api_client(url, tenant) as client:
        batches = _changed_live(client, batch_id, client.cancel)
        if wait:
            batches = follow_all(client, batches, interval=interval, silent=json)
    print_batches(batch_id, batches, json)
    if wait and not any(each.status is BatchStatus.CANCELLED for each in batches):
        raise typer.Exit(int(ExitCode.FAILED))


def pause(batch_id: BatchOrGroup, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Pause a batch.

    Its lines are not sent until it is resumed. Its deadline does not change. In a group, batches that have
    already ended stay unchanged.
    """
    with api_client(url, tenant) as client:
        batches = _changed_live(client, batch_id, client.pause)
    print_batches(batch_id, batches, json)


def resume(
    batch_id: BatchOrGroup,
    window: Window = None,
    max_cost: MaxCost = None,
    wait: Wait = False,
    interval: Interval = 1.0,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Resume a paused batch, or a batch that ended early.

    If the batch was cancelled, expired or failed, a new batch is created. The new batch copies the results of
    the first batch, and sends the remaining lines. If you repeat the command, it prints the same new batch.
    In a group, completed batches stay unchanged.
    """

    with api_client(url, tenant) as client:
        if not is_group(batch_id):
            ids, batches = [batch_id], [client.resume(batch_id, window, max_cost)]
            if (window or max_cost) and batches[0].id == batch_id:
                kept = "The batch continues; --window and --max-cost only apply to ended batches."
                stderr().print(kept, markup=False)
        else:
            _check_cap(batch_id, max_cost)
            parts = batches_of(client, batch_id)
            parts = [each for each in parts if each.status is not BatchStatus.COMPLETED]
            if not parts:
                stop(f"All batches of {batch_id} are completed; `retry` sends lines that failed again.")
            ids = [each.id for each in parts]
            batches = for_each(client, batch_id, parts, lambda each: client.resume(each.id, window))
        _follow_new(client, ids, batches, batch_id, wait=wait, interval=interval, json=json)


def retry(
    batch_id: BatchOrGroup,
    code: Annotated[
        list[str] | None,
        typer.Option(help="Only lines that failed with this code; repeatable.", show_default=False),
    ] = None,
    window: Window = None,
    max_cost: MaxCost = None,
    wait: Wait = False,
    interval: Interval = 1.0,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Create a batch that retries the lines that failed.

    A repeated call returns the same batch. In a group, each batch that has failed lines is retried.
    """
    with api_client(url, tenant) as client:
        if not is_group(batch_id):
            ids, batches = [batch_id], [client.retry(batch_id, window, code, max_cost)]
        else:
            _check_cap(batch_id, max_cost)
            parts = _with_failed_lines(client, batch_id, batches_of(client, batch_id), code)
            ids = [each.id for each in parts]
            batches = for_each(client, batch_id, parts, lambda each: client.retry(each.id, window, code))
        _follow_new(client, ids, batches, batch_id, wait=wait, interval=interval, json=json)


def _changed_live(client: Client, id: str, change: Callable[[str], BatchObject]) -> list[BatchObject]:
    """Call `change` for a single batch, or for the batches of a group.

    - If `id` is the id of a batch, return the changed batch.
    - If `id` is the id of a group, change only the batches that have not ended. Return all batches of the
      group, including the unchanged batches. If all of them have already ended, the command ends with an
      error.

    Args:
        id: id of a batch or of a group.
        change: function that changes a batch. It gets the batch's id, and returns the changed batch.
    """
    if not is_group(id):
        return [change(id)]
    batches = batches_of(client, id, complete=False)
    live = [each for each in batches if not each.status.is_terminal]
    if not live:
        stop(f"All batches of {id} have ended already.")
    changed = {each.id: each for each in for_each(client, id, live, lambda each: change(each.id))}
    return [changed.get(each.id, each) for each in batches]


def _with_failed_lines(
    client: Client, group: str, batches: Sequence[BatchObject], codes: Sequence[str] | None
) -> list[BatchObject]:
    """Return the batches of a group that have failed lines.

    The command ends with an error in two cases: no batch has failed lines, or a batch of the group is not
    finished (it has not ended, or its files are not written yet).

    Args:
        codes: return only batches in which a line failed with one of these error codes; None or empty for all
            codes.
    """
    for batch in batches:
        if not batch.status.is_terminal or batch.x_batchwright.files_pending:
            stop(f"{batch.id} of {group} has not ended; `batchwright watch {group}` waits for all of it.")
    failed = [each for each in batches if each.error_file_id is not None]
    found = [each for each in failed if not codes or _has_failed_with(client, each, codes)]
    if not found and failed:
        known = ", ".join(sorted({code for each in failed for code in _codes_of(each)}))
        stop(f"No line of {group} failed with {' or '.join(codes or [])}. Its lines failed with: {known}.")
    return found or stop(f"No line of {group} failed.")


def _has_failed_with(client: Client, batch: BatchObject, codes: Sequence[str]) -> bool:
    """Return True if a line of the batch failed with one of these error codes.

    If the batch has so many different codes that the API does not list all of them, read the batch's error
    file. If the API refuses to send this file, for example because the file was deleted, return True. The
    later request to retry the batch then fails, and the error message contains the reason.
    """
    known = _codes_of(batch)
    if batch.error_file_id is None or error_tally.OTHER not in known or not known.isdisjoint(codes):
        return not known.isdisjoint(codes)
    rest = b""
    try:
        with client.content(batch.error_file_id) as pieces:
            for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                if any(error_tally.line_error(line).code in codes for line in lines):
                    return True
    except ClientError as error:
        if not error.is_rejected:
            raise
        return True
    return False


def _codes_of(batch: BatchObject) -> set[str]:
    return {each.code for each in batch.x_batchwright.errors_summary}


def _check_cap(group: str, max_cost: str | None) -> None:
    if max_cost is not None:
        stop(f"{group} is several batches, and --max-cost is the cap of one: name one of them.")


def max_cost(
    batch_id: BatchId,
    amount: Annotated[
        str | None,
        typer.Argument(metavar="AMOUNT", help="The new cap; none removes it.", show_default=False),
    ] = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Change the maximum cost of a batch in progress.

    When the cost reaches this maximum, no more lines are sent.
    """
    with api_client(url, tenant) as client:
        print_batches(batch_id, [client.change_max_cost(batch_id, amount)], json)


def delete(
    batch_id: BatchOrGroup,
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="Keep its output and error files.")
    ] = False,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Delete a batch that has ended, and its files.

    The dead letters of the batch are deleted, too. The input file is kept. A group is deleted as a whole,
    with all batches that retry or resume a batch of the group. All these batches must have ended.
    """
    deleted = list[DeletedBatch]()

    def delete_one(batch: BatchObject) -> BatchObject:
        deleted.append(client.delete_batch(batch.id, keep_files=keep_files))
        return batch

    with api_client(url, tenant) as client:
        if not is_group(batch_id):
            deleted.append(client.delete_batch(batch_id, keep_files=keep_files))
        else:
            batches = all_batches_of(client, batch_id)
            if live := ", ".join(each.id for each in batches if not each.status.is_terminal):
                stop(f"{batch_id} has batches that have not ended: {live}. Cancel it first, or wait.")
            for_each(client, batch_id, batches, delete_one)
    if json:
        for each in deleted:
            print_json(each)
        return
    what = f"{batch_id} with {len(deleted):,} batches" if is_group(batch_id) else batch_id
    stderr().print(f"Deleted {what}.", markup=False)


def _follow_new(
    client: Client,
    sources: Sequence[str],
    batches: list[BatchObject],
    id: str,
    *,
    wait: bool,
    interval: float,
    json: bool,
) -> None:
    """Print new batches, and the ids of the batches from which they were created.

    Args:
        sources: ids of the original batches, in the order of `batches`.
        batches: the new batches.
        id: id of the batch or group that the user has named.
        wait: True to first wait until the new batches have ended, and to end the command with the exit code
            that `batches_exit_code` returns.
        interval: seconds between two polls while waiting.
        json: True to print the new batches as JSON, without the original ids.
    """
    for source, batch in zip(sources, batches, strict=True):
        if batch.id != source and not json:
            origin = batch.x_batchwright.origin
            verb = "retries" if origin is not None and origin.kind is RerunKind.RETRY else "resumes"
            stderr().print(f"{batch.id} {verb} {source}.", style="dim", markup=False)
    if wait:
        batches = follow_all(client, batches, interval=interval, silent=json)
    print_batches(id, batches, json)
    if wait:
        raise typer.Exit(int(batches_exit_code(batches)))
