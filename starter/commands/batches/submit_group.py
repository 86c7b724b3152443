"""Submits an input that is too large for one batch as a group of batches."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.rules.input.oversized_input import (
    DuplicateCustomId,
    InputPart,
    PartFile,
    divide,
    part_metadata,
)
from batchwright.starter.batch_groups import parts_of
from batchwright.starter.client import Client
from batchwright.starter.client_errors import ClientError
from batchwright.starter.output import program_name, stderr, stop
from batchwright.storage.base import StorageUnavailable
from batchwright.storage.spill.spilled_bytes import SpillSpace

# `Client.create` with the arguments that the command line gives.
CreateBatch = Callable[..., BatchObject]


def divided_input(
    client: Client, path: Path, file: BinaryIO, max_cost: str | None, spool_dir: Path | None
) -> list[InputPart]:
    """Divide an input into parts that are small enough for one batch each. Return the parts.

    The command ends with an error in these cases:

    - There are several parts, and `max_cost` is not None. The maximum cost is for a single batch.
    - There are several parts, and two lines have the same custom id.
    - The ids of the lines do not fit into memory, and the local disk is full or cannot be used.

    Args:
        spool_dir: directory for the ids of the lines if these ids do not fit into memory; None for the
            system's temporary directory.
    """
    try:
        with closing(SpillSpace(spool_dir, "The division")) as space:
            parts = divide(file, client.part_limits(), space.new_bytes)
        if len(parts) > 1 and max_cost is not None:
            stop(f"{path} needs {len(parts):,} batches, and --max-cost is the cap of one: divide the file.")
        return parts
    except StorageUnavailable as error:
        stop(str(error))
    except DuplicateCustomId as error:
        stop(f"{path} is too large for one batch, and {str(error)[:1].lower()}{str(error)[1:]}")


def print_webhook_secret(batch: BatchObject) -> None:
    """Print the secret of the batch's own webhook. Only the response that creates the batch contains it."""
    hook = batch.x_batchwright.webhook
    if hook is not None:
        secret = hook.secret or "unreadable, so rotate it"
        stderr().print(f"Webhook {hook.id}, secret: {secret}", markup=False)


class GroupSubmission:
    """The submission of a group: one batch for each part of an input that is too large for one batch.

    The same input and the same options of the command always give the same group id. The idempotency key of
    each part consists of the group id and the part's number. If you repeat an interrupted command, these ids
    and keys are the same, and only the missing batches are created.
    """

    def __init__(
        self, client: Client, path: Path, file: BinaryIO, parts: Sequence[InputPart], group: str
    ) -> None:
        self._client, self._path, self._file = client, path, file
        self._parts, self._group = parts, group

    def run(
        self, create: CreateBatch, metadata: Mapping[str, str] | None, *, may_have_ended: bool
    ) -> list[BatchObject]:
        """Create the batches that are missing, and return the batches of all parts.

        Args:
            create: function that creates one batch from an uploaded file.
            metadata: metadata that the user has given for all batches; None if there is none.
            may_have_ended: only used if all batches exist already and have ended. True to return these
                batches, False to end the command with an error.

        Raises:
            ClientError: a part could not be uploaded, or its batch could not be created. The message says how
                to continue.
        """
        found, count = parts_of(self._client, self._group), len(self._parts)
        if not may_have_ended and len(found) == count and all(b.status.is_terminal for b in found.values()):
            stop(
                f"{self._path} was submitted already as {self._group}, which has ended; "
                f"`{program_name()} status {self._group}` shows it. To submit it again, add "
                "--idempotency-key with any new key."
            )
        before = f", {len(found):,} of which exist already" if found else ""
        stderr().print(
            f"{self._path} is too large for one batch. It becomes {count:,} batches{before}: {self._group}.",
            markup=False,
        )
        for number, part in enumerate(self._parts, 1):
            if number not in found:
                found[number] = self._create(create, metadata, number, part)
                print_webhook_secret(found[number])
        return [found[number] for number in range(1, count + 1)]

    def _create(
        self, create: CreateBatch, metadata: Mapping[str, str] | None, number: int, part: InputPart
    ) -> BatchObject:
        count, key = len(self._parts), f"{self._group}-{number}"
        name = f"{self._path.stem}-{number}-of-{count}.jsonl"
        try:
            with BufferedReader(PartFile(self._file, part)) as file:
                uploaded = self._client.upload(file, name, idempotency_key=key)
            given = part_metadata(metadata, self._group, number, count)
            return create(file_id=uploaded.id, metadata=given, idempotency_key=key)
        except ClientError as error:
            others = f" The parts before it run as {self._group}." if number > 1 else ""
            raise ClientError(
                f"Part {number} of {count} was not submitted: {error}{others} Repeat the command to submit "
                f"what is missing{f', or cancel {self._group}' if others else ''}.",
                is_transient=error.is_transient,
                is_rejected=error.is_rejected,
                code=error.code,
            ) from None
