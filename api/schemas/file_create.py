"""Fields of new files (purpose, name, size and lifetime) and the form of `POST /v1/files`."""

import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from batchwright.api.errors import invalid_value
from batchwright.api.schemas.json_body import (
    as_object,
    reject_unknown,
    required_integer,
    required_text,
    wrong_type,
)
from batchwright.database.records import Purpose
from batchwright.rules.stored_objects.retention import INPUT_FILE_LIFETIME
from batchwright.settings import Settings

# Gets the content of a file that is uploaded, expanded and in pieces. The pages at `/ui` pass it in the ASGI
# scope of their request.
ContentObserver = Callable[[bytes], Awaitable[None]]
SCOPE_OBSERVER = "batchwright.content_observer"
PURPOSES: dict[str, Purpose] = {
    purpose: purpose for purpose in get_args(Purpose) if purpose != "batch_output"
}
MIN_EXPIRY_SECONDS = 3600
MAX_EXPIRY_SECONDS = 2_592_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MAX_NAME_CHARACTERS = 255
_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "additionalProperties": False,
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"enum": list(PURPOSES)},
        "expires_after[anchor]": {"enum": ["created_at"]},
        "expires_after[seconds]": {
            "type": "integer",
            "minimum": MIN_EXPIRY_SECONDS,
            "maximum": MAX_EXPIRY_SECONDS,
        },
    },
}
FILE_BODY = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}}


class ExpiryBody(BaseModel):
    """Schema of `expires_after` and `output_expires_after`, which say when a file expires."""

    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS)


def check_purpose(text: str) -> Purpose:
    """Check the purpose of an uploaded file, and return it.

    Raises:
        ApiError: uploaded files cannot have this purpose.
    """
    purpose = PURPOSES.get(text)
    if purpose is None:
        supported = ", ".join(f"'{name}'" for name in PURPOSES)
        raise invalid_value("purpose", f"Invalid value: '{text}'. Supported values are: {supported}.")
    return purpose


def file_size_limit(settings: Settings, purpose: Purpose | None) -> int:
    """Return the maximum size in bytes of a file that is uploaded with one request.

    Args:
        settings: settings of the API process.
        purpose: purpose of the file; None if it is not known yet. The result for None is the size limit of
            the purpose with the largest limit.
    """
    if purpose is None:
        return max(settings.max_batch_file_bytes, settings.max_file_bytes)
    return settings.max_batch_file_bytes if purpose == "batch" else settings.max_file_bytes


def parse_expiry(value: object, param: str) -> int | None:
    """Return the number of seconds in `{"anchor": ..., "seconds": ...}`; None if the value is null or
    missing.

    Args:
        param: name of the field, for errors.

    Raises:
        ApiError: the value is not such an object, or the seconds are out of range.
    """
    if value is None:
        return None
    fields = as_object(value)
    if fields is None:
        raise wrong_type(param, "an object", value)
    prefix = f"{param}."
    reject_unknown(fields, ("anchor", "seconds"), prefix)
    anchor = required_text(fields, "anchor", prefix)
    return check_expiry(anchor, required_integer(fields, "seconds", prefix), param)


def check_expiry(anchor: str, seconds: int, param: str) -> int:
    """Check the lifetime that the client wants for a file. Return it in seconds.

    Args:
        anchor: start of the lifetime. Only `created_at` is allowed.
        seconds: length of the lifetime.
        param: name of the field in the request, for errors.

    Raises:
        ApiError: `anchor` is not `created_at`, or the seconds are out of range.
    """
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


def file_expiry(purpose: Purpose, life: timedelta | None, now: datetime) -> datetime | None:
    """Return the time at which a new file expires; None if it never expires.

    Args:
        life: lifetime that the client requested. If it is None, a file with the purpose `batch` gets a
            default lifetime, and any other file never expires.
        now: time at which the file is created.
    """
    if life is None and purpose == "batch":
        life = INPUT_FILE_LIFETIME
    return None if life is None else now + life


def clean_filename(filename: str) -> str:
    """Shorten a file name and remove control characters. Return `file` if nothing is left."""
    return _CONTROL.sub("", filename)[:_MAX_NAME_CHARACTERS] or "file"
