"""What `POST /v1/batches` may say, and the order it makes."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from api.bodies import as_object, check_text, integer_of, json_body, refuse_unknown, text_of, wrong_type
from api.errors import ApiError, invalid_value, missing
from batchwright.contracts.batch import BatchOrder, BatchPolicy, Caller
from batchwright.contracts.openai import Endpoint, Profile
from batchwright.rules.ids import new_batch_id
from batchwright.rules.windows import DEFAULT_WINDOW, window_seconds
from batchwright.settings import Settings

FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
EXTENSION = "x_batchwright"  # in profile relaxed
MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY_CHARACTERS = 64
MAX_METADATA_VALUE_CHARACTERS = 512
MIN_EXPIRY_SECONDS = 3600
MAX_EXPIRY_SECONDS = 2_592_000
_MAX_ID_CHARACTERS = 256


class ExpiryBody(BaseModel):
    """Describes `expires_after` and `output_expires_after`."""

    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS)


_WINDOW = "^[1-9][0-9]{0,8}[smhd]$"
NO_NUL = r"^[^\x00]*$"
_MetadataKey = Annotated[str, Field(max_length=MAX_METADATA_KEY_CHARACTERS, pattern=NO_NUL)]
_MetadataValue = Annotated[str, Field(max_length=MAX_METADATA_VALUE_CHARACTERS, pattern=NO_NUL)]


class ExtensionBody(BaseModel):
    """Describes `x_batchwright`."""

    model_config = ConfigDict(extra="forbid")

    deduplicate: bool | None = Field(
        None, description="ask lines that ask the same once; without it as the operator's settings say"
    )


class _Body(BaseModel):
    """Describes the body; `read_creation` reads it."""

    model_config = ConfigDict(extra="forbid")

    input_file_id: str = Field(max_length=_MAX_ID_CHARACTERS, pattern=NO_NUL)
    endpoint: Endpoint
    metadata: dict[_MetadataKey, _MetadataValue] | None = Field(None, max_length=MAX_METADATA_PAIRS)
    output_expires_after: ExpiryBody | None = None


class _RelaxedBody(_Body):
    completion_window: str | None = Field(
        DEFAULT_WINDOW,
        pattern=_WINDOW,
        description="24h, or another whole number of s, m, h or d within the operator's bounds",
    )
    x_batchwright: ExtensionBody | None = None


class _StrictBody(_Body):
    completion_window: Literal["24h"]


class ChanceBody(BaseModel):
    """Describes the body of a retry or resumption, which may be left out."""

    model_config = ConfigDict(extra="forbid")

    completion_window: str | None = Field(
        None, pattern=_WINDOW, description="of the new batch; without it the first one's"
    )


_BODIES: dict[Profile, type[_Body]] = {Profile.RELAXED: _RelaxedBody, Profile.STRICT: _StrictBody}


def body_of(profile: Profile) -> dict[str, object]:
    """What the profile's body adds to the OpenAPI description."""
    return json_body(_BODIES[profile])


class Creation(NamedTuple):
    """A request to create a batch in which nothing is wrong."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: str
    window: timedelta
    metadata: dict[str, str] | None
    output_expires_after_seconds: int | None
    deduplicate: bool
    caller: Caller = Caller()


def read_creation(fields: Mapping[str, object], settings: Settings) -> Creation:
    """Raises ApiError for the first thing that is wrong, in the order of the contract's table."""
    refuse_unknown(fields, (*FIELDS, EXTENSION) if settings.profile is Profile.RELAXED else FIELDS)
    _require(fields, settings.profile)
    file_id = text_of(fields, "input_file_id")
    if len(file_id) > _MAX_ID_CHARACTERS:
        raise invalid_value("input_file_id", f"'input_file_id' has over {_MAX_ID_CHARACTERS} characters.")
    endpoint = _endpoint(text_of(fields, "endpoint"))
    window, length = read_window(fields.get("completion_window"), settings)
    return Creation(
        file_id,
        endpoint,
        window,
        length,
        _metadata(fields.get("metadata")),
        read_expiry(fields.get("output_expires_after"), "output_expires_after"),
        _deduplicate(fields.get(EXTENSION), settings),
    )


def make_order(creation: Creation, tenant: str, created_at: datetime, settings: Settings) -> BatchOrder:
    """A new batch's order, with the operator's settings of this moment."""
    return BatchOrder(
        batch_id=new_batch_id(),
        tenant=tenant,
        input_file_id=creation.input_file_id,
        endpoint=creation.endpoint,
        completion_window=creation.completion_window,
        created_at=created_at,
        expires_at=created_at + creation.window,
        metadata=creation.metadata,
        output_expires_after_seconds=creation.output_expires_after_seconds,
        weight=settings.tenant_weights.get(tenant, 1.0),
        policy=BatchPolicy(
            profile=settings.profile,
            cancel_grace_seconds=settings.cancel_grace_seconds,
            expiry_grace_seconds=settings.expiry_grace_seconds,
            finalize_patience_seconds=settings.finalize_patience_seconds,
            heartbeat_timeout_seconds=settings.heartbeat_timeout_seconds,
            slice_seconds=settings.slice_seconds,
            outstanding_slices=settings.outstanding_slices,
            inline_slices=settings.inline_slices,
            few_steps=True,
            continue_as_new_events=settings.continue_as_new_events,
            deduplicate=creation.deduplicate,
            caller=creation.caller,
        ),
    )


def check_expiry(anchor: str, seconds: int, param: str) -> int:
    """The lifetime of a file that `anchor` and `seconds` ask for; `param` names the pair."""
    if anchor != "created_at":
        message = f"Invalid value: '{anchor}'. Supported values are: 'created_at'."
        raise invalid_value(f"{param}.anchor", message)
    if not MIN_EXPIRY_SECONDS <= seconds <= MAX_EXPIRY_SECONDS:
        message = (
            f"Invalid value for '{param}.seconds': expected an integer from {MIN_EXPIRY_SECONDS} "
            f"to {MAX_EXPIRY_SECONDS}, but got {seconds} instead."
        )
        raise invalid_value(f"{param}.seconds", message)
    return seconds


def _require(fields: Mapping[str, object], profile: Profile) -> None:
    required = ["input_file_id", "endpoint"]
    if profile is Profile.STRICT:
        required.append("completion_window")
    for name in required:
        if name not in fields:
            raise missing(name)


def _endpoint(text: str) -> Endpoint:
    try:
        return Endpoint(text)
    except ValueError:
        supported = ", ".join(f"'{endpoint}'" for endpoint in Endpoint)
        message = f"Invalid value: '{text}'. Supported values are: {supported}."
        raise invalid_value("endpoint", message) from None


def read_window(value: object, settings: Settings) -> tuple[str, timedelta]:
    """The window as the client wrote it, and its length. Raises ApiError."""
    if value is None and settings.profile is Profile.RELAXED:
        value = DEFAULT_WINDOW
    text = check_text(value, "completion_window")
    try:
        shortest, longest = settings.min_window_seconds, settings.max_window_seconds
        return text, timedelta(seconds=window_seconds(text, settings.profile, shortest, longest))
    except ValueError as error:
        raise invalid_value("completion_window", str(error)) from None


def _deduplicate(value: object, settings: Settings) -> bool:
    """What `x_batchwright` says of it. Raises ApiError."""
    if value is None:
        return settings.deduplicate
    fields = as_object(value)
    if fields is None:
        raise wrong_type(EXTENSION, "an object", value)
    refuse_unknown(fields, ExtensionBody.model_fields, "x_batchwright.")
    asked = fields.get("deduplicate")
    if asked is not None and not isinstance(asked, bool):
        raise wrong_type("x_batchwright.deduplicate", "a boolean", asked)
    return settings.deduplicate if asked is None else asked


def _metadata(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    pairs = as_object(value)
    if pairs is None:
        raise wrong_type("metadata", "an object", value)
    if len(pairs) > MAX_METADATA_PAIRS:
        raise _metadata_error(f"at most {MAX_METADATA_PAIRS} pairs are allowed, but got {len(pairs)}")
    return {_metadata_key(key): _metadata_value(key, item) for key, item in pairs.items()}


def _metadata_key(key: str) -> str:
    if len(key) > MAX_METADATA_KEY_CHARACTERS:
        raise _metadata_error(f"the key '{key[:32]}...' has over {MAX_METADATA_KEY_CHARACTERS} characters")
    if "\x00" in key:
        raise _metadata_error("a key contains a NUL character")
    return key


def _metadata_value(key: str, value: object) -> str:
    text = check_text(value, f"metadata.{key}")
    if len(text) > MAX_METADATA_VALUE_CHARACTERS:
        raise _metadata_error(f"the value of '{key}' has over {MAX_METADATA_VALUE_CHARACTERS} characters")
    return text


def _metadata_error(problem: str) -> ApiError:
    return invalid_value("metadata", f"Invalid 'metadata': {problem}.")


def read_expiry(value: object, param: str) -> int | None:
    """The seconds of `{anchor, seconds}`; None where nothing is asked for. Raises ApiError."""
    if value is None:
        return None
    fields = as_object(value)
    if fields is None:
        raise wrong_type(param, "an object", value)
    prefix = f"{param}."
    refuse_unknown(fields, ("anchor", "seconds"), prefix)
    anchor = text_of(fields, "anchor", prefix)
    return check_expiry(anchor, integer_of(fields, "seconds", prefix), param)
