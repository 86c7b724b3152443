"""Builds the responses of OpenAI's API from database rows, and JSON responses from objects."""

from collections.abc import Mapping
from datetime import datetime

from fastapi import Response
from pydantic import BaseModel

from batchwright.api.schemas.shown_forecasts import start_forecast_object
from batchwright.contracts.api_objects.openai import (
    BatchCost,
    BatchError,
    BatchErrors,
    BatchExtension,
    BatchObject,
    BatchWebhook,
    FileObject,
    FilePage,
    ForecastObject,
    OutputLocation,
    PartObject,
    RequestCounts,
    UploadObject,
    UsageObject,
    WaitingObject,
)
from batchwright.contracts.api_objects.pages import ListPage, page_of
from batchwright.contracts.temporal_payloads.output_copies import OutputCopy
from batchwright.contracts.terms import UploadStatus
from batchwright.database.records import BatchRow, FileRow, PartRow, UploadRow
from batchwright.rules.batch_states import visible_status
from batchwright.rules.token_costs import batch_cost


def json_response(
    content: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return `content` as a JSON response. FastAPI's slower validation and encoding are not used."""
    return Response(content.model_dump_json(), status, headers, media_type="application/json")


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
    row: BatchRow,
    *,
    paused: bool | None = None,
    waiting: list[WaitingObject] | None = None,
    forecast: ForecastObject | None = None,
    webhook: BatchWebhook | None = None,
) -> BatchObject:
    order = row.order
    errors = [BatchError.model_validate(error, from_attributes=True) for error in row.errors]
    return BatchObject(
        id=order.batch_id,
        endpoint=order.endpoint,
        model=row.models[0].model if len(row.models) == 1 else None,
        errors=BatchErrors(data=errors) if errors else None,
        input_file_id=order.input_file_id,
        completion_window=order.completion_window,
        status=visible_status(row.status, cancel_requested=row.cancel_requested_at is not None),
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        created_at=int(order.created_at.timestamp()),
        in_progress_at=_seconds(row.in_progress_at),
        expires_at=int(order.deadline.timestamp()),
        finalizing_at=_seconds(row.finalizing_at),
        completed_at=_seconds(row.completed_at),
        failed_at=_seconds(row.failed_at),
        expired_at=_seconds(row.expired_at),
        cancelling_at=_seconds(row.cancel_requested_at),
        cancelled_at=_seconds(row.cancelled_at),
        request_counts=RequestCounts(total=row.total, completed=row.completed, failed=row.failed),
        usage=UsageObject.of(row.usage),
        metadata=order.metadata,
        x_batchwright=BatchExtension(
            models=row.models,
            paused=paused,
            waiting=waiting,
            forecast=forecast,
            start_forecast=None if row.start_forecast is None else start_forecast_object(row.start_forecast),
            origin=order.origin,
            deduplicate=order.policy.deduplicate,
            priority=order.priority,
            files_pending=row.files_pending,
            errors_summary=row.errors_summary,
            cost=cost_of(row),
            max_cost=order.max_cost,
            start_at=_seconds(order.start_at),
            input_location=order.input_location,
            output_location=_output_location(row),
            webhook=webhook,
        ),
    )


def _output_location(row: BatchRow) -> OutputLocation | None:
    if row.order.output_location is None:
        return None
    copy = row.output_copy or OutputCopy()
    return OutputLocation(url=row.order.output_location, state=copy.state, error=copy.error or None)


def cost_of(row: BatchRow) -> BatchCost | None:
    """Return the cost of a batch so far, as shown to clients; None if none of its models has prices."""
    final = row.status.is_terminal and not row.files_pending
    return batch_cost(row.model_usage, row.prices, final=final)


def file_page(rows: list[FileRow], *, more: bool) -> ListPage[FileObject]:
    return page_of(FilePage, [file_object(row) for row in rows], more=more)


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())
