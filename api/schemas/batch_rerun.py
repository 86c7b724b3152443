"""Bodies of requests to retry or resume a batch: their schemas and their validation."""

from collections.abc import Mapping
from typing import Annotated, cast

from pydantic import BaseModel, ConfigDict, Field

from batchwright.api.errors import invalid_value
from batchwright.api.schemas.batch_create import NO_NUL, WINDOW_PATTERN
from batchwright.api.schemas.json_body import check_text, wrong_type
from batchwright.contracts.model_registry.price_config import DecimalText

MAX_RETRY_CODES = 40
MAX_CODE_CHARACTERS = 64
_Code = Annotated[str, Field(min_length=1, max_length=MAX_CODE_CHARACTERS, pattern=NO_NUL)]


class RerunBody(BaseModel):
    """Schema of the optional body of a request to retry or resume a batch. Such a request creates a new
    batch.
    """

    model_config = ConfigDict(extra="forbid")

    completion_window: str | None = Field(
        None, pattern=WINDOW_PATTERN, description="of the new batch; by default that of the original"
    )
    max_cost: DecimalText | None = Field(
        None, description="cap on the cost of the new batch; by default that of the original"
    )


class RetryBody(RerunBody):
    """Schema of the optional body of a request to retry the failed lines of a batch."""

    codes: list[_Code] | None = Field(
        None,
        min_length=1,
        max_length=MAX_RETRY_CODES,
        description="retry only lines that failed with one of these codes of `errors_summary`",
    )


def parse_codes(fields: Mapping[str, object]) -> list[str]:
    """Return the field `codes` of a request to retry a batch: error codes, sorted and without duplicates.

    Only lines that failed with one of these codes are sent again. If the field is missing or null, return an
    empty list. An empty list means that all failed lines are sent again.

    Raises:
        ApiError: the field is not a list of 1 to `MAX_RETRY_CODES` codes.
    """
    value = fields.get("codes")
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong_type("codes", "an array", value)
    items = cast("list[object]", value)
    if not 1 <= len(items) <= MAX_RETRY_CODES:
        message = f"Invalid 'codes': it must have 1 to {MAX_RETRY_CODES} error codes, but has {len(items)}."
        raise invalid_value("codes", message)
    codes = {check_text(item, f"codes[{number}]") for number, item in enumerate(items)}
    if not all(1 <= len(code) <= MAX_CODE_CHARACTERS for code in codes):
        raise invalid_value("codes", f"Invalid 'codes': a code has 1 to {MAX_CODE_CHARACTERS} characters.")
    return sorted(codes)
