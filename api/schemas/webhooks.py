"""Checks the bodies of `/v1/x/webhooks` and the field `x_batchwright.webhook` of a new batch. Builds the
response objects from database rows.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field

from batchwright.api.errors import invalid_value
from batchwright.api.schemas.json_body import (
    as_object,
    check_text,
    reject_unknown,
    required_integer,
    required_text,
    wrong_type,
)
from batchwright.contracts.api_objects.webhook_events import END_EVENTS, TEST_BATCH, EventType
from batchwright.contracts.api_objects.webhooks import (
    AttemptObject,
    DeliveryObject,
    WebhookObject,
)
from batchwright.database.tables.webhooks.webhook_deliveries import ListedDelivery
from batchwright.database.tables.webhooks.webhook_endpoints import WebhookEndpoint
from batchwright.rules.webhooks.signatures import check_secret
from batchwright.rules.webhooks.ssrf_rules import MAX_URL_CHARACTERS
from batchwright.rules.webhooks.webhook_retries import RETRY_PERIOD, TEST_RETRY_PERIOD, pause_after

MAX_DESCRIPTION_CHARACTERS = 256
_MAX_SECRET_CHARACTERS = 128
MAX_OVERLAP_SECONDS = 7 * 86_400
DEFAULT_OVERLAP_SECONDS = 86_400
_NO_NUL = r"^[^\x00]*$"
_Url = Annotated[str, Field(min_length=1, max_length=MAX_URL_CHARACTERS, pattern=_NO_NUL)]
_Description = Annotated[str, Field(max_length=MAX_DESCRIPTION_CHARACTERS, pattern=_NO_NUL)]
_Events = Annotated[list[EventType], Field(min_length=1, max_length=len(EventType))]
_DETAILS = "send more about the batch in `data.x_batchwright`"


class BatchWebhookBody(BaseModel):
    """Schema of `x_batchwright.webhook`: a URL to which the events of one batch are sent, and its
    settings.
    """

    model_config = ConfigDict(extra="forbid")

    url: _Url
    events: _Events | None = Field(None, description="if absent, the four ends of a batch")
    details: bool | None = Field(None, description=_DETAILS)
    secret: str | None = Field(
        None,
        max_length=_MAX_SECRET_CHARACTERS,
        pattern=_NO_NUL,
        description="`whsec_` and 24 to 64 bytes in base64; if absent, the response has a new one",
    )


class WebhookBody(BaseModel):
    """Schema of the request body that creates a webhook endpoint (a URL to which events are sent, and its
    settings).
    """

    model_config = ConfigDict(extra="forbid")

    url: _Url
    events: _Events | None = Field(None, description="if absent, the four ends of a batch")
    description: _Description | None = None
    details: bool | None = Field(None, description=_DETAILS)


class WebhookChanges(BaseModel):
    """Schema of the body that changes a webhook endpoint. Fields that are missing stay unchanged."""

    model_config = ConfigDict(extra="forbid")

    url: _Url | None = None
    events: _Events | None = None
    description: _Description | None = None
    details: bool | None = Field(None, description=_DETAILS)
    enabled: bool | None = Field(None, description="if false, no event is sent, and none is kept for later")


class RotateBody(BaseModel):
    """Schema of the optional body of a request to replace the secret of a webhook endpoint."""

    model_config = ConfigDict(extra="forbid")

    overlap_seconds: int | None = Field(
        None,
        ge=0,
        le=MAX_OVERLAP_SECONDS,
        description=f"how long the replaced secret signs, too; {DEFAULT_OVERLAP_SECONDS} if absent",
    )


class TestBody(BaseModel):
    """Schema of the optional body of a request to send a test event."""

    __test__ = False  # it is no test of pytest
    model_config = ConfigDict(extra="forbid")

    event: EventType | None = Field(None, description="if absent, the first event of the endpoint")


class WebhookSpec(NamedTuple):
    """A validated request for a webhook endpoint: its URL, and the events that are sent to it.

    Attributes:
        details: True to send events with more fields than OpenAI's events.
        secret: secret that signs the events; empty to generate one.
    """

    url: str
    events: list[EventType]
    description: str = ""
    details: bool = False
    secret: str = ""


def parse_webhook(fields: Mapping[str, object], prefix: str = "") -> WebhookSpec:
    """Validate a request for a webhook endpoint, and return its values.

    Args:
        fields: body of `POST /v1/x/webhooks`, or the field `x_batchwright.webhook` of a new batch.
        prefix: text before field names in error messages: empty for the body, and `x_batchwright.webhook.`
            for the field of a batch.

    Raises:
        ApiError: a field is not valid.
    """
    of_batch = bool(prefix)
    reject_unknown(fields, (BatchWebhookBody if of_batch else WebhookBody).model_fields, prefix)
    url = required_text(fields, "url", prefix)
    secret = ""
    if fields.get("secret") is not None:
        secret = check_text(fields["secret"], f"{prefix}secret")
        try:
            check_secret(secret)
        except ValueError as error:
            raise invalid_value(f"{prefix}secret", f"Invalid '{prefix}secret': {error}.") from None
    return WebhookSpec(
        url,
        parse_events(fields, prefix) or list(END_EVENTS),
        parse_description(fields) or "",
        parse_switch(fields, "details", prefix) or False,
        secret,
    )


def parse_batch_webhook(value: object) -> WebhookSpec | None:
    """Validate the field `x_batchwright.webhook`, and return its values; None if `value` is None.

    Raises:
        ApiError: the value is not valid.
    """
    if value is None:
        return None
    fields = as_object(value)
    if fields is None:
        raise wrong_type("x_batchwright.webhook", "an object", value)
    return parse_webhook(fields, "x_batchwright.webhook.")


def parse_events(fields: Mapping[str, object], prefix: str = "") -> list[EventType] | None:
    value, param = fields.get("events"), f"{prefix}events"
    if value is None:
        return None
    if not isinstance(value, list):
        raise wrong_type(param, "an array", value)
    items = cast("list[object]", value)
    if not items:
        raise invalid_value(param, f"Invalid '{param}': name at least one event.")
    if len(items) > len(EventType):
        raise invalid_value(param, f"Invalid '{param}': there are only {len(EventType)} events.")
    chosen = [parse_event(item, f"{param}[{number}]") for number, item in enumerate(items)]
    return list(dict.fromkeys(chosen))


def parse_event(value: object, param: str) -> EventType:
    text = check_text(value, param)
    if text not in set(EventType):
        named = ", ".join(f"'{event}'" for event in EventType)
        raise invalid_value(param, f"Unknown event '{text[:64]}'. Supported events are: {named}.")
    return EventType(text)


def parse_description(fields: Mapping[str, object]) -> str | None:
    if fields.get("description") is None:
        return None
    text = check_text(fields["description"], "description")
    if len(text) > MAX_DESCRIPTION_CHARACTERS:
        message = f"Invalid 'description': it has over {MAX_DESCRIPTION_CHARACTERS} characters."
        raise invalid_value("description", message)
    return text


def parse_switch(fields: Mapping[str, object], name: str, prefix: str = "") -> bool | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong_type(prefix + name, "a boolean", value)
    return value


def parse_overlap(fields: Mapping[str, object]) -> int:
    reject_unknown(fields, RotateBody.model_fields)
    if fields.get("overlap_seconds") is None:
        return DEFAULT_OVERLAP_SECONDS
    seconds = required_integer(fields, "overlap_seconds")
    if not 0 <= seconds <= MAX_OVERLAP_SECONDS:
        message = (
            f"Invalid value for 'overlap_seconds': expected 0 to {MAX_OVERLAP_SECONDS}, but got {seconds}."
        )
        raise invalid_value("overlap_seconds", message)
    return seconds


def webhook_object(row: WebhookEndpoint, now: datetime, secret: str | None = None) -> WebhookObject:
    overlaps = row.previous_until is not None and row.previous_until > now
    return WebhookObject(
        id=row.id,
        url=row.url,
        events=row.events,
        description=row.description,
        details=row.details,
        batch_id=row.batch_id or None,
        enabled=row.disabled_at is None,
        disabled_at=_seconds(row.disabled_at),
        disabled_reason=row.disabled_reason or None,
        failing_since=_seconds(row.failing_since),
        created_at=int(row.created_at.timestamp()),
        previous_secret_expires_at=_seconds(row.previous_until) if overlaps else None,
        secret=secret,
    )


def _next_attempt_at(listed: ListedDelivery) -> datetime | None:
    """Return the time of the next attempt to send the event of a delivery.

    The time is computed from the earlier attempts. Return None in these cases:

    - The delivery is not pending.
    - No attempt was made yet.
    - A client has requested a replay (to send the event again). The list of attempts does not show with which
      attempt the replay began.
    """
    row, attempts = listed.delivery, listed.attempts
    if row.status != "pending" or row.replays or not attempts:
        return None
    ended = attempts[-1].at + timedelta(seconds=attempts[-1].seconds)
    period = TEST_RETRY_PERIOD if row.batch_id == TEST_BATCH else RETRY_PERIOD
    return ended + pause_after(len(attempts), ended - attempts[0].at, period)


def delivery_object(listed: ListedDelivery) -> DeliveryObject:
    row = listed.delivery
    return DeliveryObject(
        id=row.id,
        webhook_id=row.endpoint_id,
        event_id=row.event_id,
        type=row.type,
        batch_id=row.batch_id,
        occurred_at=int(row.occurred_at.timestamp()),
        created_at=int(row.created_at.timestamp()),
        status=row.status,
        reason=row.reason or None,
        attempt_count=row.attempts,
        next_attempt_at=_seconds(_next_attempt_at(listed)),
        attempts=[
            AttemptObject(
                number=attempt.number,
                at=attempt.at.timestamp(),
                latency_seconds=attempt.seconds,
                status=attempt.http_status,
                reason=attempt.reason or None,
            )
            for attempt in listed.attempts
        ],
    )


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())
