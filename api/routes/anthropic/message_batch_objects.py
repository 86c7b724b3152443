"""Objects of Anthropic's API: the request body that creates a message batch, and the message batch itself."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from batchwright.contracts.api_objects.anthropic import MessageBatchObject, MessageCounts, ProcessingStatus
from batchwright.contracts.errors import LineCode
from batchwright.contracts.terms import BatchStatus, Profile
from batchwright.database.records import BatchRow, FileRow
from batchwright.rules.ids import message_batch_id

RESULTS_LIFETIME = timedelta(days=29)  # from the creation of a message batch


class _RequestBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    custom_id: str = Field(pattern="^[a-zA-Z0-9_-]{1,64}$", description="unique in the batch")
    params: dict[str, JsonValue] = Field(description="the body of a request to `/v1/messages`")


class MessageBatchBody(BaseModel):
    """Schema of the body that creates a message batch. `RequestStream` validates the body."""

    model_config = ConfigDict(extra="forbid")

    requests: list[_RequestBody] = Field(min_length=1)


def has_ended(row: BatchRow) -> bool:
    """Return True if the batch has ended and its files are written."""
    return row.status.is_terminal and not row.files_pending


def ended_without_files(row: BatchRow) -> bool:
    """Return True if the batch has ended and has neither an output file nor an error file."""
    return has_ended(row) and row.output_file_id is None and row.error_file_id is None


def result_file_ids(row: BatchRow) -> list[str]:
    """Return the ids of the files from which the results of a batch are read.

    - If the batch has not ended, return an empty list.
    - If the batch has an output file or an error file, return the ids of these files.
    - If a message batch ended without these files, return the id of its input file. The result of each
      request in the file then says only how the batch ended.
    - If a batch that was created with OpenAI's API ended without these files, return an empty list, because
      the input of the batch may be invalid.
    """
    if not has_ended(row):
        return []
    if ended_without_files(row):
        return [row.order.input_file_id] if row.order.policy.message_requests else []
    return [id for id in (row.output_file_id, row.error_file_id) if id is not None]


def results_available(row: BatchRow, files: Mapping[str, FileRow], now: datetime) -> bool:
    """Return True if a client can read the results of the batch at the time `now`.

    Args:
        row: database row of the batch.
        files: the rows of the files with the batch's results, by id, without files that were deleted.
    """
    ids = result_file_ids(row)
    return bool(ids) and now < row.order.created_at + RESULTS_LIFETIME and all(id in files for id in ids)


def message_batch(
    row: BatchRow, files: Mapping[str, FileRow], now: datetime, profile: Profile, results_url: str
) -> MessageBatchObject:
    """Return a batch in the format of Anthropic's API, as of the time `now`.

    Args:
        row: database row of the batch.
        files: the existing files with results of the batch, by id.
        profile: decides which numbers of requests are shown while the batch runs. With `relaxed`, these are
            the current numbers. With `strict`, all requests are counted as processing, as in Anthropic's API.
        results_url: URL from which the client can download the results.
    """
    order, ended = row.order, has_ended(row)
    available = results_available(row, files, now)
    archived = bool(result_file_ids(row)) and not available
    return MessageBatchObject(
        id=message_batch_id(order.batch_id),
        processing_status=_status(row),
        request_counts=_final_counts(row) if ended else _live_counts(row, profile),
        created_at=order.created_at,
        expires_at=order.deadline,
        ended_at=_ended_at(row) if ended else None,
        cancel_initiated_at=row.cancel_requested_at,
        archived_at=min(order.created_at + RESULTS_LIFETIME, now) if archived else None,
        results_url=results_url if available else None,
    )


def _status(row: BatchRow) -> ProcessingStatus:
    if has_ended(row):
        return "ended"
    return "in_progress" if row.cancel_requested_at is None else "canceling"


def _total(row: BatchRow) -> int:
    """Return the number of requests in a batch.

    For a batch that was created with OpenAI's API, this is 0 until its input is validated.
    """
    return row.order.policy.message_requests or row.total


def _live_counts(row: BatchRow, profile: Profile) -> MessageCounts:
    succeeded, errored = (row.completed, row.failed) if profile is Profile.RELAXED else (0, 0)
    processing = max(_total(row) - succeeded - errored, 0)
    return MessageCounts(processing=processing, succeeded=succeeded, errored=errored, canceled=0, expired=0)


def _final_counts(row: BatchRow) -> MessageCounts:
    total, succeeded = _total(row), row.completed
    canceled = _failed_with(row, LineCode.BATCH_CANCELLED)
    expired = _failed_with(row, LineCode.BATCH_EXPIRED)
    if ended_without_files(row):
        succeeded = 0
        canceled = total if row.status is BatchStatus.CANCELLED else 0
        expired = total if row.status is BatchStatus.EXPIRED else 0
    errored = total - succeeded - canceled - expired
    return MessageCounts(
        processing=0, succeeded=succeeded, errored=errored, canceled=canceled, expired=expired
    )


def _failed_with(row: BatchRow, code: LineCode) -> int:
    return sum(error.count for error in row.errors_summary if error.code == code)


def _ended_at(row: BatchRow) -> datetime | None:
    ends = (row.completed_at, row.failed_at, row.expired_at, row.cancelled_at)
    return next((end for end in ends if end is not None), None)
