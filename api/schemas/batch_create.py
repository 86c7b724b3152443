"""Body of `POST /v1/batches`: its schema and its validation."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from batchwright.api.errors import IDEMPOTENCY_KEY_HINT, ApiError, invalid_value, missing_parameter
from batchwright.api.schemas.file_create import ExpiryBody, parse_expiry
from batchwright.api.schemas.json_body import (
    as_object,
    check_text,
    json_body_spec,
    reject_unknown,
    required_integer,
    required_text,
    wrong_type,
)
from batchwright.api.schemas.start_time import StartTime, parse_start_at
from batchwright.api.schemas.webhooks import BatchWebhookBody, WebhookSpec, parse_batch_webhook
from batchwright.contracts.model_registry import price_config
from batchwright.contracts.model_registry.price_config import DecimalText
from batchwright.contracts.temporal_payloads.batch import DEFAULT_PRIORITY, MAX_PRIORITY, MIN_PRIORITY, Caller
from batchwright.contracts.temporal_payloads.batch_schedules import BatchTemplate
from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.batch_filters import MAX_METADATA_PAIRS
from batchwright.rules.deadline import DEFAULT_WINDOW, window_seconds
from batchwright.rules.ids import new_file_id
from batchwright.rules.stored_objects.object_locations import (
    MAX_URL_CHARACTERS,
    SCHEME,
    parse_output_location,
)
from batchwright.settings import Settings

BATCH_FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
EXTENSION = "x_batchwright"  # this field exists only in profile relaxed
MAX_METADATA_KEY_CHARACTERS = 64
MAX_METADATA_VALUE_CHARACTERS = 512
_MAX_ID_CHARACTERS = 256
_MAX_SHOWN_CHARACTERS = 60  # maximum characters of a value in an error message


WINDOW_PATTERN = "^[1-9][0-9]{0,8}[smhd]$"
NO_NUL = r"^[^\x00]*$"
_MetadataKey = Annotated[str, Field(max_length=MAX_METADATA_KEY_CHARACTERS, pattern=NO_NUL)]
_MetadataValue = Annotated[str, Field(max_length=MAX_METADATA_VALUE_CHARACTERS, pattern=NO_NUL)]


class ExtensionBody(BaseModel):
    """Schema of `x_batchwright`: Batchwright's own fields of a new batch."""

    model_config = ConfigDict(extra="forbid")

    deduplicate: bool | None = Field(
        None, description="send identical requests once; if absent, the operator's setting applies"
    )
    priority: int | None = Field(
        None,
        ge=MIN_PRIORITY,
        le=MAX_PRIORITY,
        description=f"relative to your other batches; {MAX_PRIORITY} is the most urgent; "
        f"if absent {DEFAULT_PRIORITY}, or the highest that you may use if that is lower",
    )
    max_cost: DecimalText | None = Field(
        None,
        description="cap on the cost of the batch, above 0 in the currency of the prices; once it is "
        "reached, no more lines are sent",
    )
    start_at: StartTime = None
    output_location: str | None = Field(
        None,
        max_length=MAX_URL_CHARACTERS,
        pattern=NO_NUL,
        description="`s3://bucket/prefix` where you may write; the output and error files are also written "
        "there when the batch ends",
    )
    webhook: BatchWebhookBody | None = Field(None, description="a URL that receives the events of this batch")


class _BatchBody(BaseModel):
    """Schema of the body that creates a batch. `parse_batch_create` validates the body."""

    model_config = ConfigDict(extra="forbid")

    input_file_id: str = Field(max_length=_MAX_ID_CHARACTERS, pattern=NO_NUL)
    endpoint: Endpoint
    metadata: dict[_MetadataKey, _MetadataValue] | None = Field(None, max_length=MAX_METADATA_PAIRS)
    output_expires_after: ExpiryBody | None = None


class _RelaxedBody(_BatchBody):
    input_file_id: str = Field(
        max_length=MAX_URL_CHARACTERS,
        pattern=NO_NUL,
        description="id of an uploaded file, or `s3://bucket/key` of an object that you may read",
    )
    completion_window: str | None = Field(
        DEFAULT_WINDOW,
        pattern=WINDOW_PATTERN,
        description="24h, or another whole number of s, m, h or d within the operator's bounds",
    )
    x_batchwright: ExtensionBody | None = None


class _StrictBody(_BatchBody):
    endpoint: Annotated[
        Endpoint,
        WithJsonSchema({"type": "string", "enum": [each.value for each in Endpoint if each.is_openais]}),
    ]
    completion_window: Literal["24h"]


class MaxCostBody(BaseModel):
    """Schema of the body that changes the maximum cost of a batch. When the batch has reached its maximum
    cost, no more lines are sent.
    """

    model_config = ConfigDict(extra="forbid")

    max_cost: DecimalText | None = Field(
        description="above 0 in the currency of the prices; null removes the cap"
    )


_BODIES: dict[Profile, type[_BatchBody]] = {Profile.RELAXED: _RelaxedBody, Profile.STRICT: _StrictBody}


def batch_body_spec(profile: Profile) -> dict[str, object]:
    """Return the OpenAPI description of the body of `POST /v1/batches`.

    The profile `strict` allows only what OpenAI's API allows. The profile `relaxed` also allows Batchwright's
    own fields and values.
    """
    return json_body_spec(_BODIES[profile])


class BatchCreate(NamedTuple):
    """A validated request to create a batch.

    Attributes:
        template: parameters that a batch and a schedule have in common, such as the input and the completion
            window.
        webhook: endpoint that gets only the events of this batch; None if the request names no endpoint.
        start_at: time at which the batch starts; None to start it when it is created.
    """

    template: BatchTemplate
    webhook: WebhookSpec | None = None
    start_at: datetime | None = None

    def by(self, caller: Caller) -> "BatchCreate":
        """Return a copy of this request that contains the identity of its sender, `caller`."""
        return self._replace(template=self.template.model_copy(update={"caller": caller}))


def parse_batch_create(fields: Mapping[str, object], settings: Settings) -> BatchCreate:
    """Validate the body of a request to create a batch, and return its values.

    Raises:
        ApiError: a field is not valid. If there are several such fields, the error is about the first of them
            in the order of the API reference.
    """
    known = (*BATCH_FIELDS, EXTENSION) if settings.profile is Profile.RELAXED else BATCH_FIELDS
    reject_unknown(fields, known, hints=IDEMPOTENCY_KEY_HINT)
    required = ["input_file_id", "endpoint"]
    if settings.profile is Profile.STRICT:
        required.append("completion_window")
    for name in required:
        if name not in fields:
            raise missing_parameter(name)
    file_id = required_text(fields, "input_file_id")
    is_location = _is_location(file_id, settings)
    max_characters = MAX_URL_CHARACTERS if is_location else _MAX_ID_CHARACTERS
    if len(file_id) > max_characters:
        raise invalid_value("input_file_id", f"'input_file_id' has over {max_characters} characters.")
    endpoint = _endpoint(required_text(fields, "endpoint"), settings.profile)
    window, length = parse_window(fields.get("completion_window"), settings)
    metadata = _metadata(fields.get("metadata"))
    expiry = parse_expiry(fields.get("output_expires_after"), "output_expires_after")
    extension = _extension(fields.get(EXTENSION))
    deduplicate, priority = _deduplicate(extension, settings), _priority(extension)
    webhook = parse_batch_webhook(extension.get("webhook"))
    max_cost = parse_max_cost(extension.get("max_cost"), "x_batchwright.max_cost")
    start_at = parse_start_at(extension.get("start_at"))
    template = BatchTemplate(
        input_file_id=new_file_id() if is_location else file_id,
        input_location=file_id if is_location else None,
        output_location=_output_location(extension.get("output_location")),
        endpoint=endpoint,
        completion_window=window,
        window_seconds=int(length.total_seconds()),
        metadata=metadata,
        output_expires_after_seconds=expiry,
        deduplicate=deduplicate,
        priority=priority,
        max_cost=max_cost,
    )
    return BatchCreate(template, webhook, start_at)


class EstimateBody(BaseModel):
    """Schema of the body of a request to estimate a batch."""

    model_config = ConfigDict(extra="forbid")

    input_file_id: str = Field(
        max_length=MAX_URL_CHARACTERS,
        pattern=NO_NUL,
        description="id of an uploaded file, or `s3://bucket/key` of an object that you may read",
    )
    endpoint: Endpoint


class EstimateRequest(NamedTuple):
    """A validated request to estimate a batch.

    One of `input_file_id` and `input_location` is set, and the other one is empty.
    """

    input_file_id: str
    input_location: str
    endpoint: Endpoint


def parse_estimate(fields: Mapping[str, object], settings: Settings) -> EstimateRequest:
    """Validate the body of a request to estimate a batch, and return its values.

    Raises:
        ApiError: a field is missing, unknown or not valid.
    """
    reject_unknown(fields, EstimateBody.model_fields)
    for name in EstimateBody.model_fields:
        if name not in fields:
            raise missing_parameter(name)
    endpoint = _endpoint(required_text(fields, "endpoint"), settings.profile)
    named = required_text(fields, "input_file_id")
    if _is_location(named, settings):
        return EstimateRequest("", named, endpoint)
    return EstimateRequest(named, "", endpoint)


def _is_location(file_id: str, settings: Settings) -> bool:
    return file_id.startswith(SCHEME) and settings.profile is Profile.RELAXED


def _endpoint(text: str, profile: Profile) -> Endpoint:
    supported = [each for each in Endpoint if each.is_openais or profile is Profile.RELAXED]
    if text not in supported:
        named = ", ".join(f"'{endpoint}'" for endpoint in supported)
        raise invalid_value("endpoint", f"Invalid value: '{text}'. Supported values are: {named}.")
    return Endpoint(text)


def parse_window(value: object, settings: Settings) -> tuple[str, timedelta]:
    """Validate a completion window: the time within which a batch must complete. Return the client's text for
    the window, and the window as a duration.

    If `value` is None in the profile `relaxed`, return the default window.

    Raises:
        ApiError: the window is not allowed. Or `value` is None in the profile `strict`.
    """
    if value is None and settings.profile is Profile.RELAXED:
        value = DEFAULT_WINDOW
    text = check_text(value, "completion_window")
    try:
        shortest, longest = settings.min_window_seconds, settings.max_window_seconds
        return text, timedelta(seconds=window_seconds(text, settings.profile, shortest, longest))
    except ValueError as error:
        raise invalid_value("completion_window", str(error)) from None


def _extension(value: object) -> Mapping[str, object]:
    """Return the fields of `x_batchwright`; empty if the client sent no such object. Their values are not
    checked yet.

    Raises:
        ApiError: the value is not an object, or has an unknown field.
    """
    fields = as_object({} if value is None else value)
    if fields is None:
        raise wrong_type(EXTENSION, "an object", value)
    reject_unknown(fields, ExtensionBody.model_fields, "x_batchwright.")
    return fields


def _deduplicate(extension: Mapping[str, object], settings: Settings) -> bool:
    value = extension.get("deduplicate")
    if value is None:
        return settings.deduplicate
    if not isinstance(value, bool):
        raise wrong_type("x_batchwright.deduplicate", "a boolean", value)
    return value


def _output_location(value: object) -> str | None:
    if value is None:
        return None
    url = check_text(value, "x_batchwright.output_location")
    try:
        parse_output_location(url)
    except ValueError as error:
        message = f"Invalid 'x_batchwright.output_location': {str(error)[:MAX_URL_CHARACTERS]}."
        raise invalid_value("x_batchwright.output_location", message) from None
    return url


def _priority(fields: Mapping[str, object]) -> int | None:
    if fields.get("priority") is None:
        return None
    priority = required_integer(fields, "priority", "x_batchwright.")
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        message = (
            f"Invalid value for 'x_batchwright.priority': expected {MIN_PRIORITY} to {MAX_PRIORITY}, "
            f"the most urgent, but got {priority}."
        )
        raise invalid_value("x_batchwright.priority", message)
    return priority


def parse_max_cost(value: object, param: str) -> str | None:
    """Validate the maximum cost of a batch, and return it as decimal text; None if `value` is None.

    Args:
        param: name of the parameter, for the error message.

    Raises:
        ApiError: the value is not a number above 0.
    """
    if value is None:
        return None
    try:
        return price_config.parse_max_cost(value)
    except ValueError as error:
        message = f"Invalid value for '{param}': {error}, but it is {repr(value)[:_MAX_SHOWN_CHARACTERS]}."
        raise invalid_value(param, message) from None


def _metadata(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    pairs = as_object(value)
    if pairs is None:
        raise wrong_type("metadata", "an object", value)
    if len(pairs) > MAX_METADATA_PAIRS:
        raise _metadata_error(f"at most {MAX_METADATA_PAIRS} pairs are allowed, but got {len(pairs)}")
    checked: dict[str, str] = {}
    for key, item in pairs.items():
        if len(key) > MAX_METADATA_KEY_CHARACTERS:
            raise _metadata_error(
                f"the key '{key[:32]}...' has over {MAX_METADATA_KEY_CHARACTERS} characters"
            )
        if "\x00" in key:
            raise _metadata_error("a key contains a NUL character")
        checked[key] = check_text(item, f"metadata.{key}")
        if len(checked[key]) > MAX_METADATA_VALUE_CHARACTERS:
            raise _metadata_error(f"the value of '{key}' has over {MAX_METADATA_VALUE_CHARACTERS} characters")
    return checked


def _metadata_error(problem: str) -> ApiError:
    return invalid_value("metadata", f"Invalid 'metadata': {problem}.")
