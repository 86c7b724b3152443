"""What the bodies of /v1/uploads may say."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from api.bodies import integer_of, json_body, refuse_unknown, text_of, wrong_type
from api.creation import ExpiryBody, read_expiry
from api.errors import invalid_value, missing
from api.receiving import check_purpose, clean_name
from batchwright.database.rows import Purpose
from batchwright.database.upload_rows import UploadRow
from batchwright.rules.ids import new_upload_id
from batchwright.settings import Settings

MAX_PARTS = 10_000
_MAX_TYPE_CHARACTERS = 255
_MD5_CHARACTERS = 32
_NO_NUL = r"^[^\x00]*$"
_LIST = TypeAdapter(list[object])
_SentPurpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]


class _UploadBody(BaseModel):
    """Describes the body; `read_upload` reads it."""

    model_config = ConfigDict(extra="forbid")

    filename: str = Field(min_length=1, pattern=_NO_NUL)
    purpose: _SentPurpose
    bytes: int = Field(ge=1, description="how many there will be; with purpose batch fewer are allowed")
    mime_type: str = Field(max_length=_MAX_TYPE_CHARACTERS, pattern=_NO_NUL)
    expires_after: ExpiryBody | None = None


class _CompletionBody(BaseModel):
    """Describes the body; `read_completion` reads it."""

    model_config = ConfigDict(extra="forbid")

    part_ids: list[str] = Field(min_length=1, max_length=MAX_PARTS)
    md5: str | None = Field(None, pattern="^[0-9a-fA-F]{32}$")


CREATION = json_body(_UploadBody)
COMPLETION = json_body(_CompletionBody)
PART = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["data"],
                    "additionalProperties": False,
                    "properties": {"data": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}


class Completion(NamedTuple):
    part_ids: list[str]
    md5: str | None  # lower case

    @property
    def digest(self) -> str:
        """Tells whether two requests complete with the same parts."""
        return sha256("\n".join(self.part_ids).encode(errors="backslashreplace")).hexdigest()


def read_upload(fields: Mapping[str, object], tenant: str, now: datetime, settings: Settings) -> UploadRow:
    """The new upload's row. Raises ApiError for the first thing that is wrong."""
    refuse_unknown(fields, _UploadBody.model_fields)
    filename = text_of(fields, "filename")
    if not filename:
        raise invalid_value("filename", "Invalid value for 'filename': it is empty.")
    purpose = check_purpose(text_of(fields, "purpose"))
    size = _size(fields, largest_upload(settings, purpose))
    mime_type = text_of(fields, "mime_type")
    if len(mime_type) > _MAX_TYPE_CHARACTERS:
        raise invalid_value("mime_type", f"'mime_type' has over {_MAX_TYPE_CHARACTERS} characters.")
    return UploadRow(
        id=new_upload_id(),
        tenant=tenant,
        purpose=purpose,
        filename=clean_name(filename),
        mime_type=mime_type,
        bytes=size,
        expires_after_seconds=read_expiry(fields.get("expires_after"), "expires_after"),
        created_at=now,
        expires_at=now + timedelta(seconds=settings.upload_seconds),
    )


def read_completion(fields: Mapping[str, object]) -> Completion:
    """Raises ApiError for the first thing that is wrong."""
    refuse_unknown(fields, _CompletionBody.model_fields)
    return Completion(_part_ids(fields), _md5(fields.get("md5")))


def largest_upload(settings: Settings, purpose: Purpose) -> int:
    return settings.max_batch_file_bytes if purpose == "batch" else settings.max_upload_bytes


def _size(fields: Mapping[str, object], most: int) -> int:
    size = integer_of(fields, "bytes")
    if not 1 <= size <= most:
        message = f"Invalid value for 'bytes': expected an integer from 1 to {most}, but got {size} instead."
        raise invalid_value("bytes", message)
    return size


def _part_ids(fields: Mapping[str, object]) -> list[str]:
    if "part_ids" not in fields:
        raise missing("part_ids")
    value = fields["part_ids"]
    if not isinstance(value, list):
        raise wrong_type("part_ids", "an array", value)
    ids = [_part_id(number, part_id) for number, part_id in enumerate(_LIST.validate_python(value))]
    if not 1 <= len(ids) <= MAX_PARTS:
        raise invalid_value("part_ids", f"Invalid 'part_ids': expected 1 to {MAX_PARTS}, but got {len(ids)}.")
    if len(set(ids)) < len(ids):
        raise invalid_value("part_ids", "Invalid 'part_ids': a part is named twice.")
    return ids


def _part_id(number: int, value: object) -> str:
    if not isinstance(value, str):
        raise wrong_type(f"part_ids[{number}]", "a string", value)
    return value


def _md5(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong_type("md5", "a string", value)
    if len(value) != _MD5_CHARACTERS or set(value.lower()) - set("0123456789abcdef"):
        raise invalid_value("md5", "Invalid value for 'md5': expected 32 hexadecimal digits.")
    return value.lower()
