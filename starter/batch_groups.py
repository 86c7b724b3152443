"""Groups of batches. An input that is too large for one batch is divided into parts. Each part is the input
of one batch, and these batches form a group.

The metadata of each batch contains the id of the group.
"""

from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus

from rich.table import Table

from batchwright.contracts.api_objects.openai import BatchObject, BatchPage, RequestCounts
from batchwright.contracts.api_objects.pages import page_of
from batchwright.contracts.temporal_payloads.batch import RerunKind
from batchwright.rules.input.oversized_input import (
    GROUP_KEY,
    FoundBatch,
    is_group,
    part_number,
    whole_input_ids,
)
from batchwright.starter.batch_output import batch_table, count_text, status_markup
from batchwright.starter.client import Client
from batchwright.starter.client_errors import ClientError
from batchwright.starter.output import ExitCode, exit_code, print_json, property_table, stdout

_PAGE = 100  # batches in a list


def batches_of(client: Client, id: str, *, complete: bool = True) -> list[BatchObject]:
    """Return the batches of a group in the order of the input, or the single batch with this id.

    Args:
        id: id of a group or of a batch.
        complete: False to return an incomplete group, too. A group is incomplete if the command that creates
            its batches was interrupted.

    Raises:
        ClientError: there is no such batch or group, a call to the API failed, or the group is incomplete and
            `complete` is True.
    """
    if not is_group(id):
        return [client.batch(id)]
    parts = parts_of(client, id)
    if not parts:
        raise _no_group(id)
    _, count = part_number(next(iter(parts.values())).metadata)
    if complete and len(parts) < count:
        missing = ", ".join(str(number) for number in range(1, count + 1) if number not in parts)
        raise ClientError(
            f"{id} has no batch for part {missing} of {count}: repeat the `submit` command, which adds it."
        )
    return list(parts.values())


def all_batches_of(client: Client, id: str) -> list[BatchObject]:
    """Return all batches of a group, newest first. They include batches that retry or resume another batch.

    Raises:
        ClientError: there is no such group, or a call to the API failed.
    """
    batches = list(_batches_with(client, GROUP_KEY, id))
    if not batches:
        raise _no_group(id)
    return batches


def _no_group(id: str) -> ClientError:
    return ClientError(f"There is no group {id}; `batchwright list` shows batches.", is_rejected=True)


def for_each(
    client: Client, group: str, batches: Sequence[BatchObject], action: Callable[[BatchObject], BatchObject]
) -> list[BatchObject]:
    """Call `action` for each of these batches of a group, and return the results.

    - If the API rejects the request because the batch has just ended, the result is the ended batch.
    - If the API rejects the request for another reason, `action` is still called for the remaining batches.
    - If a request fails otherwise, for example without a response, `action` is not called for the rest.

    Raises:
        ClientError: requests were rejected, or a request failed otherwise. The message names the batches of
            these requests. If a request failed otherwise, the message tells the user to repeat the command.
    """
    done, rejected = list[BatchObject](), list[str]()
    for batch in batches:
        try:
            done.append(_call_or_ended(client, batch, action))
        except ClientError as error:
            if error.is_rejected:
                rejected.append(f"{batch.id}: {error}")
                continue
            before = "".join(f" Rejected: {each}" for each in rejected)
            raise ClientError(
                f"Only {len(done)} of the {len(batches)} batches of {group} are done, then {batch.id}: "
                f"{error}{before} Repeat the command to continue.",
                is_transient=error.is_transient,
            ) from None
    if rejected:
        raise ClientError(
            f"{len(rejected)} of {len(batches)} batches of {group} failed, the others are done. "
            + " ".join(rejected),
            is_rejected=True,
        )
    return done


def _call_or_ended(
    client: Client, batch: BatchObject, action: Callable[[BatchObject], BatchObject]
) -> BatchObject:
    """Return the result of `action`. If `action` fails because the batch has just ended, return the batch."""
    try:
        return action(batch)
    except ClientError as error:
        if error.status == HTTPStatus.CONFLICT and not batch.status.is_terminal:
            now = client.batch(batch.id)
            if now.status.is_terminal:
                return now
        raise


def parts_of(client: Client, group: str) -> dict[int, BatchObject]:
    """Return one batch for each part of a group's input. The keys are the numbers of the parts, from 1.

    If the batch of a part was resumed, return the newest resuming batch for this part. A part that has no
    batch is left out. The dict is sorted by number.
    """
    found: dict[int, BatchObject] = {}
    for batch in whole_input_batches(client, GROUP_KEY, group):
        found.setdefault(part_number(batch.metadata)[0], batch)
    return dict(sorted(found.items()))


def whole_input_batches(client: Client, key: str, value: str) -> Iterator[BatchObject]:
    """Yield batches that have the pair `key` and `value` in their metadata, newest first.

    Batches that retry only some lines of another batch are left out.
    """
    batches = {batch.id: batch for batch in _batches_with(client, key, value)}
    found = [FoundBatch(batch.id, batch.input_file_id, _is_retry(batch)) for batch in batches.values()]
    return (batches[id] for id in whole_input_ids(found))


def _is_retry(batch: BatchObject) -> bool:
    origin = batch.x_batchwright.origin
    return origin is not None and origin.kind is RerunKind.RETRY


def _batches_with(client: Client, key: str, value: str) -> Iterator[BatchObject]:
    query: dict[str, str | int] = {f"metadata[{key}]": value, "limit": _PAGE}
    while True:
        page = client.batches(query)
        yield from page.data
        if not page.has_more or page.last_id is None:
            return
        query["after"] = page.last_id


def print_batches(id: str, batches: Sequence[BatchObject], json: bool) -> None:
    """Print a batch or a group. For a group, print its totals, and a line for each of its batches.

    Args:
        id: id of the batch or group.
        batches: the single batch, or all batches of the group.
        json: True to print JSON. A group is then printed as a list of batches.
    """
    if not is_group(id):
        if json:
            print_json(batches[0])
        else:
            stdout().print(batch_table(batches[0]))
    elif json:
        print_json(page_of(BatchPage, batches, more=False))
    else:
        stdout().print(_group_table(id, batches))


def batches_exit_code(batches: Sequence[BatchObject]) -> ExitCode:
    """Return the exit code of a command that shows these batches.

    - If a batch has not ended: UNFINISHED.
    - If all batches have ended, and a batch has failed, expired or was cancelled: FAILED.
    - If all batches are completed: COMPLETED.
    """
    codes = {exit_code(batch.status) for batch in batches}
    order = (ExitCode.UNFINISHED, ExitCode.FAILED)
    return next((code for code in order if code in codes), ExitCode.COMPLETED)


def _group_table(group: str, batches: Sequence[BatchObject]) -> Table:
    table = property_table()
    counts = [batch.request_counts for batch in batches]
    total = RequestCounts(
        total=sum(each.total for each in counts),
        completed=sum(each.completed for each in counts),
        failed=sum(each.failed for each in counts),
    )
    tokens = [batch.usage for batch in batches]
    used = sum(each.input_tokens for each in tokens), sum(each.output_tokens for each in tokens)
    table.add_row("group", group)
    table.add_row("settled", count_text(total))
    if any(used):
        table.add_row("tokens", f"{used[0]:,} in, {used[1]:,} out")
    for number, batch in enumerate(batches, 1):
        table.add_row(f"part {number}", batch.id)
        table.add_row("", f"{status_markup(batch)}, {count_text(batch.request_counts)}")
    return table
