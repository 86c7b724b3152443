"""Checks the bodies of requests to `/v1/x/schedules`, and builds the response objects from database rows."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from batchwright.api.errors import ApiError, invalid_value, missing_parameter, one_of
from batchwright.api.schemas.batch_create import EXTENSION, NO_NUL, BatchCreate, parse_batch_create
from batchwright.api.schemas.cron_expressions import MAX_CRON_CHARACTERS, check_cron
from batchwright.api.schemas.json_body import as_object, check_text, reject_unknown, wrong_type
from batchwright.api.schemas.webhooks import MAX_DESCRIPTION_CHARACTERS, parse_description
from batchwright.contracts.api_objects.schedules import (
    ExpiryObject,
    RunError,
    ScheduledBatchExtension,
    ScheduledBatchObject,
    ScheduleObject,
    ScheduleRunObject,
)
from batchwright.contracts.temporal_payloads.batch_schedules import BatchTemplate, OverlapPolicy
from batchwright.database.tables.schedules import ScheduleRow, ScheduleRunRow
from batchwright.settings import Settings
from batchwright.temporal.batch_schedules import ScheduleStatus

DEFAULT_TIME_ZONE = "UTC"
_TIME_ZONE = r"^[A-Za-z][A-Za-z0-9_+/-]{0,63}$"
_MAX_SHOWN_CHARACTERS = 60
_Cron = Annotated[
    str,
    Field(
        max_length=MAX_CRON_CHARACTERS,
        pattern=NO_NUL,
        description="five fields: minute, hour, day of the month, month, day of the week; "
        "`0 2 * * mon-fri` is 02:00 from Monday to Friday",
    ),
]
_TimeZone = Annotated[
    str, Field(pattern=_TIME_ZONE, description="IANA name, such as `Europe/Berlin`; if absent, UTC")
]
_Overlap = Annotated[
    OverlapPolicy,
    Field(
        description="what happens if the schedule is due while its earlier batch has not ended: `skip` (if "
        "absent) creates none; `buffer_one` and `buffer_all` create it later; `cancel_other` cancels the "
        "earlier batch; `allow_all` runs both"
    ),
]
_Description = Annotated[str, Field(max_length=MAX_DESCRIPTION_CHARACTERS, pattern=NO_NUL)]
_Batch = Annotated[
    dict[str, JsonValue],
    Field(
        description="the body of `POST /v1/batches`, with the same fields except "
        "`x_batchwright.start_at` and `x_batchwright.webhook`"
    ),
]


class ScheduleBody(BaseModel):
    """Schema of the body that creates a schedule."""

    model_config = ConfigDict(extra="forbid")

    cron: _Cron
    time_zone: _TimeZone | None = None
    overlap: _Overlap | None = None
    description: _Description | None = None
    batch: _Batch


class ScheduleChanges(BaseModel):
    """Schema of the body that changes a schedule. Fields that are missing stay unchanged."""

    model_config = ConfigDict(extra="forbid")

    cron: _Cron | None = None
    time_zone: _TimeZone | None = None
    overlap: _Overlap | None = None
    description: _Description | None = None
    batch: _Batch | None = None


class ScheduleFields(NamedTuple):
    """Validated fields of a request to create or change a schedule. A field that was not sent is None."""

    cron: str | None
    time_zone: str | None
    overlap: OverlapPolicy | None
    description: str | None
    batch: BatchCreate | None


def parse_schedule(fields: Mapping[str, object], settings: Settings, *, is_new: bool) -> ScheduleFields:
    """Validate the body of a request to create or change a schedule, and return its values.

    For the time zone, only the form of the name is checked. Temporal checks later whether it exists.

    Raises:
        ApiError: a field is not valid, or a required field of a new schedule is missing.
    """
    reject_unknown(fields, ScheduleBody.model_fields)
    for name in ("cron", "batch") if is_new else ():
        if name not in fields:
            raise missing_parameter(name)
    given = {name: value for name, value in fields.items() if value is not None or is_new}
    return ScheduleFields(
        cron=_cron(given["cron"]) if "cron" in given else None,
        time_zone=_time_zone(fields.get("time_zone")),
        overlap=_overlap(fields.get("overlap")),
        description=parse_description(fields),
        batch=_batch(given["batch"], settings) if "batch" in given else None,
    )


def unknown_time_zone(name: str) -> ApiError:
    message = (
        f"Invalid 'time_zone': '{name[:_MAX_SHOWN_CHARACTERS]}' is not known; expected an IANA name such as "
        "'Europe/Berlin'."
    )
    return invalid_value("time_zone", message)


def _cron(value: object) -> str:
    text = check_text(value, "cron")
    try:
        return check_cron(text)
    except ValueError as error:
        shown = text[:_MAX_SHOWN_CHARACTERS]
        raise invalid_value("cron", f"Invalid 'cron' ('{shown}'): {error}.") from None


def _time_zone(value: object) -> str | None:
    if value is None:
        return None
    text = check_text(value, "time_zone")
    # "Local" would be the time zone of Temporal's server.
    if re.fullmatch(_TIME_ZONE[1:-1], text) is None or text.lower() == "local":
        raise unknown_time_zone(text)
    return text


def _overlap(value: object) -> OverlapPolicy | None:
    if value is None:
        return None
    return OverlapPolicy(one_of(check_text(value, "overlap"), "overlap", *OverlapPolicy))


def _batch(value: object, settings: Settings) -> BatchCreate:
    fields = as_object(value)
    if fields is None:
        raise wrong_type("batch", "an object", value)
    try:
        creation = parse_batch_create(fields, settings)
    except ApiError as error:
        message = f"In 'batch': {error.message}"
        raise ApiError(error.status, message, code=error.code, param=f"batch.{error.param}") from None
    if creation.start_at is not None:
        message = "The batches of a schedule start when 'cron' says; 'start_at' cannot be set."
        raise invalid_value(f"batch.{EXTENSION}.start_at", message)
    if creation.webhook is not None:
        message = (
            "The batches of a schedule have no webhook of their own: no response would show its secret. "
            "Create a webhook for all batches with POST /v1/x/webhooks."
        )
        raise invalid_value(f"batch.{EXTENSION}.webhook", message)
    return creation


def schedule_object(
    row: ScheduleRow, status: ScheduleStatus, runs: Sequence[ScheduleRunRow]
) -> ScheduleObject:
    return ScheduleObject(
        id=row.id,
        description=row.description,
        cron=row.cron,
        time_zone=row.time_zone,
        overlap=row.overlap,
        paused=status.paused,
        batch=_batch_object(row.template),
        created_at=int(row.created_at.timestamp()),
        next_times=[int(time.timestamp()) for time in status.next_times],
        skipped=status.skipped,
        runs=[_run_object(run) for run in runs],
    )


def _batch_object(template: BatchTemplate) -> ScheduledBatchObject:
    seconds = template.output_expires_after_seconds
    return ScheduledBatchObject(
        input_file_id=template.input_location or template.input_file_id,
        endpoint=template.endpoint,
        completion_window=template.completion_window,
        metadata=template.metadata,
        output_expires_after=None if seconds is None else ExpiryObject(seconds=seconds),
        x_batchwright=ScheduledBatchExtension(
            deduplicate=template.deduplicate,
            priority=template.priority,
            max_cost=template.max_cost,
            output_location=template.output_location,
        ),
    )


def _run_object(run: ScheduleRunRow) -> ScheduleRunObject:
    return ScheduleRunObject(
        scheduled_at=int(run.scheduled_at.timestamp()),
        batch_id=run.batch_id,
        status=run.status,
        error=None if run.code is None else RunError(code=run.code, message=run.message or ""),
    )
