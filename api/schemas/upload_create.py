"""Bodies of `/v1/uploads`: their schemas and their validation."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from batchwright.api.errors import IDEMPOTENCY_KEY_HINT, invalid_value, missing_parameter
from batchwright.api.schemas.file_create import ExpiryBody, check_purpose, clean_filename, parse_expiry
from batchwright.api.schemas.json_body import (
    json_body_spec,
    reject_unknown,
    required_integer,
    required_text,
    wrong_type,
)
from batchwright.database.records import Purpose, UploadRow
from batchwright.rules.ids import new_upload_id
from batchwright.settings import Settings

MAX_PARTS = 10_000
_OPEN_SECONDS = 3600  # OpenAI keeps an upload open for the same time
_MAX_TYPE_CHARACTERS = 255
_MD5_CHARACTERS = 32
_NO_NUL = r"^[^\x00]*$"
_LIST = TypeAdapter(list[object])
_SentPurpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]


class _UploadBody(BaseModel):
    """Schema of the body that creates an upload. `parse_upload_create` validates the body."""

    model_config = ConfigDict(extra="forbid")

    filename: str = Field(min_length=1, pattern=_NO_NUL)
    purpose: _SentPurpose
    bytes: int = Field(ge=1, description="size of the whole file; the limit is lower for purpose batch")
    mime_type: str = Field(max_length=_MAX_TYPE_CHARACTERS, pattern=_NO_NUL)
    expires_after: ExpiryBody | None = None


class _CompletionBody(BaseModel):
    """Schema of the body that completes an upload. `parse_completion` validates the body."""

    model_config = ConfigDict(extra="forbid")

    part_ids: list[str] = Field(min_length=1, max_length=MAX_PARTS)
    md5: str | None = Field(None, pattern="^[0-9a-fA-F]{32}$")


CREATE_BODY = json_body_spec(_UploadBody)
COMPLETE_BODY = json_body_spec(_CompletionBody)
PART_BODY = {
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


class UploadCompletion(NamedTuple):
    part_ids: list[str]
    md5: str | None  # in lower case

    @property
    def digest(self) -> str:
        """Digest of the part ids. Two requests with the same ids in the same order have the same digest."""
        return sha256("\n".join(self.part_ids).encode(errors="backslashreplace")).hexdigest()


def parse_upload_create(
    fields: Mapping[str, object], tenant: str, now: datetime, settings: Settings
) -> UploadRow:
    """Validate the body of a request to create an upload, and return the upload's row.

    Raises:
        ApiError: a field is not valid. The error is about the first such field.
    """
    reject_unknown(fields, _UploadBody.model_fields, hints=IDEMPOTENCY_KEY_HINT)
    filename = required_text(fields, "filename")
    if not filename:
        raise invalid_value("filename", "Invalid value for 'filename': it is empty.")
    purpose = check_purpose(required_text(fields, "purpose"))
    size, most = required_integer(fields, "bytes"), upload_size_limit(settings, purpose)
    if not 1 <= size <= most:
        message = f"Invalid value for 'bytes': expected an integer from 1 to {most}, but got {size} instead."
        raise invalid_value("bytes", message)
    mime_type = required_text(fields, "mime_type")
    if len(mime_type) > _MAX_TYPE_CHARACTERS:
        raise invalid_value("mime_type", f"'mime_type' has over {_MAX_TYPE_CHARACTERS} characters.")
    return UploadRow(
        id=new_upload_id(),
        tenant=tenant,
        purpose=purpose,
        filename=clean_filename(filename),
        mime_type=mime_type,
        bytes=size,
        expires_after_seconds=parse_expiry(fields.get("expires_after"), "expires_after"),
        created_at=now,
        expires_at=now + timedelta(seconds=_OPEN_SECONDS),
    )


def parse_completion(fields: Mapping[str, object]) -> UploadCompletion:
    """Validate the body of a request to complete an upload, and return its values.

    Raises:
        ApiError: a field is not valid. The error is about the first such field.
    """
    reject_unknown(fields, _CompletionBody.model_fields)
    return UploadCompletion(_part_ids(fields), _md5(fields.get("md5")))


def upload_size_limit(settings: Settings, purpose: Purpose) -> int:
    return settings.max_batch_file_bytes if purpose == "batch" else settings.max_upload_bytes


def _part_ids(fields: Mapping[str, object]) -> list[str]:
    if "part_ids" not in fields:
        raise missing_parameter("part_ids")
    value = fields["part_ids"]
    if not isinstance(value, list):
        raise wrong_type("part_ids", "an array", value)
    ids: list[str] = []
    for number, part_id in enumerate(_LIST.validate_python(value)):
        if not isinstance(part_id, str):
            raise wrong_type(f"part_ids[{number}]", "a string", part_id)
        ids.append(part_id)
    if not 1 <= len(ids) <= MAX_PARTS:
        raise invalid_value("part_ids", f"Invalid 'part_ids': expected 1 to {MAX_PARTS}, but got {len(ids)}.")
    if len(set(ids)) < len(ids):
        raise invalid_value("part_ids", "Invalid 'part_ids': a part is named twice.")
    return ids


def _md5(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong_type("md5", "a string", value)
    if len(value) != _MD5_CHARACTERS or set(value.lower()) - set("0123456789abcdef"):
        raise invalid_value("md5", "Invalid value for 'md5': expected 32 hexadecimal digits.")
    return value.lower()
