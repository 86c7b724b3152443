"""The objects clients get, every key always present; times are Unix seconds."""

from datetime import datetime
from typing import Literal

from fastapi import Response
from pydantic import BaseModel, ConfigDict

from batchwright.contracts.batch import Origin
from batchwright.contracts.openai import BatchStatus, Usage, ValidationError
from batchwright.database.rows import BatchRow, FileRow, ModelCount
from batchwright.database.upload_rows import PartRow, UploadRow, UploadStatus
from batchwright.rules.states import shown_status


class ApiObject(BaseModel):
    """Described as it is: every key always there, and no other."""

    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class FileObject(ApiObject):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None


class Deleted(ApiObject):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class UploadObject(ApiObject):
    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: UploadStatus
    file: FileObject | None


class PartObject(ApiObject):
    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


class BatchError(ApiObject):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(ApiObject):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(ApiObject):
    total: int
    completed: int
    failed: int


class InputDetails(ApiObject):
    cached_tokens: int


class OutputDetails(ApiObject):
    reasoning_tokens: int


class UsageObject(ApiObject):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class WaitingObject(ApiObject):
    """`model` is null for the whole batch; `since` is null where nobody noted the beginning."""

    model: str | None
    reason: str
    since: int | None = None


class Extension(ApiObject):
    """What OpenAI has no key for. Of a live batch alone it tells `paused` and `waiting`, else null.

    `origin` is the ended batch that this one retries or resumes. With `deduplicate` lines that ask the same
    are asked once; `duplicates` of a model are those that get the answers of others.
    """

    models: list[ModelCount]
    paused: bool | None = None
    waiting: list[WaitingObject] | None = None
    origin: Origin | None = None
    deduplicate: bool = False


class BatchObject(ApiObject):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: UsageObject
    metadata: dict[str, str] | None
    x_batchwright: Extension


class ModelObject(ApiObject):
    """`created` is 0: no backend says when its model was made in a way that stays the same."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "batchwright"


class FilePage(ApiObject):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchPage(ApiObject):
    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ModelPage(ApiObject):
    object: Literal["list"] = "list"
    data: list[ModelObject]


class ErrorDetails(ApiObject):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(ApiObject):
    """The body of every answer other than 2xx."""

    error: ErrorDetails


def answer(content: BaseModel, status: int = 200) -> Response:
    """The object as JSON, past FastAPI's own validation and encoding, which cost more than the rest."""
    return Response(content.model_dump_json(), status, media_type="application/json")


def file_object(row: FileRow) -> FileObject:
    return FileObject(
        id=row.id,
        bytes=row.bytes,
        created_at=int(row.created_at.timestamp()),
        expires_at=_seconds(row.expires_at),
        filename=row.filename,
        purpose=row.purpose,
    )


def upload_object(row: UploadRow, status: UploadStatus, file: FileRow | None) -> UploadObject:
    return UploadObject(
        id=row.id,
        bytes=row.bytes,
        created_at=int(row.created_at.timestamp()),
        expires_at=int(row.expires_at.timestamp()),
        filename=row.filename,
        purpose=row.purpose,
        status=status,
        file=None if file is None else file_object(file),
    )


def part_object(row: PartRow) -> PartObject:
    return PartObject(id=row.id, created_at=int(row.created_at.timestamp()), upload_id=row.upload_id)


def batch_object(
    row: BatchRow, *, paused: bool | None = None, waiting: list[WaitingObject] | None = None
) -> BatchObject:
    order = row.order
    return BatchObject(
        id=order.batch_id,
        endpoint=order.endpoint,
        model=row.models[0].model if len(row.models) == 1 else None,
        errors=_errors(row.errors),
        input_file_id=order.input_file_id,
        completion_window=order.completion_window,
        status=shown_status(row.status, cancel_requested=row.cancel_requested_at is not None),
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        created_at=int(order.created_at.timestamp()),
        in_progress_at=_seconds(row.in_progress_at),
        expires_at=int(order.expires_at.timestamp()),
        finalizing_at=_seconds(row.finalizing_at),
        completed_at=_seconds(row.completed_at),
        failed_at=_seconds(row.failed_at),
        expired_at=_seconds(row.expired_at),
        cancelling_at=_seconds(row.cancel_requested_at),
        cancelled_at=_seconds(row.cancelled_at),
        request_counts=RequestCounts(total=row.total, completed=row.completed, failed=row.failed),
        usage=_usage_object(row.usage),
        metadata=order.metadata,
        x_batchwright=Extension(
            models=row.models,
            paused=paused,
            waiting=waiting,
            origin=order.origin,
            deduplicate=order.policy.deduplicate,
        ),
    )


def file_page(rows: list[FileRow], *, more: bool) -> FilePage:
    first, last = (rows[0].id, rows[-1].id) if rows else (None, None)
    return FilePage(data=[file_object(row) for row in rows], first_id=first, last_id=last, has_more=more)


def batch_page(rows: list[BatchRow], *, more: bool) -> BatchPage:
    data = [batch_object(row) for row in rows]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return BatchPage(data=data, first_id=first, last_id=last, has_more=more)


def _errors(found: list[ValidationError]) -> BatchErrors | None:
    data = [BatchError.model_validate(error, from_attributes=True) for error in found]
    return BatchErrors(data=data) if data else None


def _usage_object(usage: Usage) -> UsageObject:
    return UsageObject(
        input_tokens=usage.input_tokens,
        input_tokens_details=InputDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.output_tokens,
        output_tokens_details=OutputDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.total_tokens,
    )


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())
