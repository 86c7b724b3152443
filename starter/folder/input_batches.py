"""Creates the batches of inputs. Each input gets exactly one batch, which is found again after a crash."""

import os
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import BinaryIO
from uuid import uuid4

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.terms import BatchStatus, Endpoint
from batchwright.rules.input.compression import compression_of
from batchwright.starter.batch_groups import whole_input_batches
from batchwright.starter.batch_output import error_text
from batchwright.starter.client import Client
from batchwright.starter.client_errors import ClientError
from batchwright.starter.folder.input_files import (
    BatchRecord,
    FileName,
    InputDirectory,
    InputFailed,
    printable,
)
from batchwright.starter.folder.prompts import answer, write_request
from batchwright.starter.input_format import START_BYTES, start_problem

DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)  # the caller's key is wrong, not the input
METADATA_KEY = "folder_input"
_CHANGED = (
    "input.jsonl was changed while it was read. Write inputs under another name, and rename them to *.jsonl "
    "when they are complete."
)


@dataclass(frozen=True)
class BatchOptions:
    """The options for the batches of all inputs.

    Attributes:
        endpoint: endpoint of the requests in `input.jsonl`.
        window: completion window, such as `24h`.
        model: model for inputs that have a prompt instead of an `input.jsonl`. If it is None, such inputs
            fail.
    """

    endpoint: Endpoint
    window: str
    model: str | None


@dataclass(frozen=True)
class StartedBatch:
    """The batch of an input. `is_new` is False if the batch was already created by an earlier process."""

    batch_id: str
    is_new: bool


class InputBatches:
    """The batches of the inputs. This class creates and reads them, and writes their results.

    Before anything is sent, a random key is written to `batch.json` in the input's directory. The key is the
    idempotency key of the requests, and is also in the batch's metadata. If the process is killed between two
    steps, the next process finds the uploaded file and the batch with this key.
    """

    def __init__(self, client: Client, options: BatchOptions) -> None:
        self._client = client
        self._options = options
        self._uploaded: dict[str, str] = {}  # ids of files that have no batch yet, by the key of their input

    def get(self, batch_id: str) -> BatchObject:
        return self._client.batch(batch_id)

    def start(self, directory: InputDirectory) -> StartedBatch:
        """Return the batch of an input. If no earlier process has created the batch, create it.

        If the batch ended early, and other batches have resumed its work, return the newest of these.

        Raises:
            InputFailed: the input cannot be used, or was changed while it was read.
            ClientError: a call to the API failed.
        """
        record = directory.record()
        found = None if record is None else self._find(record.key) or record.batch
        record = record or self._prepare(directory)
        try:
            batch_id = found or self._create(directory, record)
        except InputFailed:
            directory.remove(FileName.RECORD)
            raise
        except ClientError as error:
            if _is_refusal(error):  # no batch exists: if the input is queued again, it is a new one
                directory.remove(FileName.RECORD)
            raise
        if record.batch != batch_id:
            directory.write_record(record.model_copy(update={"batch": batch_id}))
        return StartedBatch(batch_id, is_new=found is None)

    def write_results(self, directory: InputDirectory, batch: BatchObject) -> None:
        """Write the results of an ended batch into the directory of its input.

        Results and an `error.txt` from an earlier attempt are deleted.

        Raises:
            InputFailed: the batch does not belong to this input or has not completed, the input has changed,
                or a file cannot be written.
            OSError: an older file cannot be deleted.
            ClientError: a call to the API failed.
        """
        record = directory.record()
        if record is None or (batch.metadata or {}).get(METADATA_KEY) != record.key:
            raise InputFailed(f"{batch.id} is not the batch of this input, so its results are not written.")
        for file_id, file in (
            (batch.output_file_id, FileName.OUTPUT),
            (batch.error_file_id, FileName.ERRORS),
        ):
            if file_id is None:
                directory.remove(file)
                continue
            with self._client.content(file_id) as pieces:
                directory.write(file, pieces)
        directory.remove(FileName.RESULT)
        if directory.size(FileName.INPUT) != record.bytes:
            raise InputFailed(
                f"{FileName.INPUT} was changed after it was read: the results are those of its first "
                f"{record.bytes:,} bytes."
            )
        if batch.status is not BatchStatus.COMPLETED:
            problems = [error_text(problem) for problem in (batch.errors.data if batch.errors else [])]
            raise InputFailed("\n".join([f"{batch.id} has ended as {batch.status.value}.", *problems]))
        if directory.exists(FileName.PROMPT):
            directory.write(FileName.RESULT, [answer(directory).encode()])
        directory.remove(FileName.REASON)

    def _prepare(self, directory: InputDirectory) -> BatchRecord:
        """Check `input.jsonl` of a new input, and decide the parameters of its batch.

        Write these parameters to `batch.json`, and return them.

        Raises:
            InputFailed: the input cannot be used.
        """
        is_prompt = directory.exists(FileName.PROMPT)
        if is_prompt and not directory.exists(FileName.INPUT):
            write_request(directory, self._options.model)
        with directory.open(FileName.INPUT) as file:
            start = file.read(START_BYTES)
            is_compressed = compression_of(start) is not None  # the API expands it
            if not is_compressed and (problem := start_problem(start, FileName.INPUT)):
                raise InputFailed(problem)
            size, _ = _version(file)
        record = BatchRecord(
            key=f"folder-{uuid4().hex}",
            endpoint=Endpoint.CHAT_COMPLETIONS if is_prompt else self._options.endpoint,
            window=self._options.window,
            bytes=size,
        )
        directory.write_record(record)
        return record

    def _find(self, key: str) -> str | None:
        """Return the id of the newest batch with the input's `key` in its metadata; None if there is none.

        Ignore batches that retry only some lines of the input. The idempotency key alone is not enough to
        find the batch, because the API forgets idempotency keys after a day.
        """
        return next((batch.id for batch in whole_input_batches(self._client, METADATA_KEY, key)), None)

    def _create(self, directory: InputDirectory, record: BatchRecord) -> str:
        """Upload `input.jsonl`, create the input's batch with the parameters in `record`, and return the
        batch's id.

        Raises:
            InputFailed: the input cannot be read, or was changed.
            ClientError: a call to the API failed.
        """
        file_id = self._uploaded.get(record.key)
        if file_id is None:
            with directory.open(FileName.INPUT) as file:
                file_id = self._upload(directory.name, file, record)
            self._uploaded[record.key] = file_id  # the creation may have to wait, for example for a quota
        try:
            batch = self._client.create(
                file_id=file_id,
                endpoint=record.endpoint,
                window=record.window,
                metadata={METADATA_KEY: record.key},
                idempotency_key=record.key,
            )
        except ClientError as error:
            if _is_refusal(error):
                self._delete_file(file_id)
                del self._uploaded[record.key]
            raise
        del self._uploaded[record.key]
        return batch.id

    def _upload(self, name: str, file: BinaryIO, record: BatchRecord) -> str:
        """Upload the open `file`, and return the id of the uploaded file.

        Raises:
            InputFailed: the input was changed since it was first read.
            ClientError: the upload failed.
        """
        before = _version(file)
        if before[0] != record.bytes:
            raise InputFailed(_CHANGED)
        try:
            uploaded = self._client.upload(file, f"{printable(name)}.jsonl", idempotency_key=record.key)
        except ClientError:
            if _version(file) != before:
                raise InputFailed(_CHANGED) from None
            raise
        if _version(file) != before:
            self._delete_file(uploaded.id)
            raise InputFailed(_CHANGED)
        return uploaded.id

    def _delete_file(self, file_id: str) -> None:
        with suppress(ClientError):  # the user needs the first error
            self._client.delete_file(file_id)


def _is_refusal(error: ClientError) -> bool:
    """Return True if the request itself is wrong, so that the API would always reject it.

    Return False if the API is unavailable or denies access.
    """
    return error.is_rejected and not error.is_transient and error.status not in DENIED


def _version(file: BinaryIO) -> tuple[int, int]:
    """Return the size of an open file in bytes, and the time of its last change in nanoseconds."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns
