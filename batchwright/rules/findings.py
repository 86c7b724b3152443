"""What validation found wrong, in the words of the contract; the list is capped, the count is not."""

from enum import StrEnum

from batchwright.contracts.openai import ValidationError
from batchwright.rules.quotas import Excess, Quota

MAX_LISTED = 1_000


class Code(StrEnum):
    """The `code` of a validation error."""

    INVALID_REQUEST = "invalid_request"
    EMPTY_FILE = "empty_file"
    INVALID_JSON_LINE = "invalid_json_line"
    MISSING_REQUIRED_PARAMETER = "missing_required_parameter"
    DUPLICATE_CUSTOM_ID = "duplicate_custom_id"
    INVALID_METHOD = "invalid_method"
    INVALID_URL = "invalid_url"
    INVALID_TYPE = "invalid_type"
    STREAMING_UNSUPPORTED = "streaming_unsupported"
    MISMATCHED_MODEL = "mismatched_model"
    MODEL_NOT_FOUND = "model_not_found"
    TOO_MANY_EMBEDDING_INPUTS = "too_many_embedding_inputs"
    LINE_TOO_LONG = "line_too_long"
    TOO_MANY_TASKS = "too_many_tasks"
    TOO_MANY_ERRORS = "too_many_errors"
    TOKEN_LIMIT_EXCEEDED = "token_limit_exceeded"


class Findings:
    """Collects errors in the order found, which is the order of lines."""

    def __init__(self) -> None:
        self.count = 0
        self._listed: list[ValidationError] = []

    def add(self, code: Code, message: str, *, param: str | None = None, line: int | None = None) -> None:
        self.count += 1
        if len(self._listed) < MAX_LISTED:
            self._listed.append(ValidationError(code=code.value, message=message, param=param, line=line))

    def listed(self) -> list[ValidationError]:
        """At most MAX_LISTED entries; where there are more errors the last entry says so."""
        if self.count <= MAX_LISTED:
            return list(self._listed)
        shown = MAX_LISTED - 1
        message = f"The input has {self.count} errors; only the first {shown} are listed."
        notice = ValidationError(code=Code.TOO_MANY_ERRORS.value, message=message)
        return [*self._listed[:shown], notice]


def missing_file(file_id: str, tenant: str) -> ValidationError:
    message = f"Cannot find file {file_id}, or organization {tenant} does not have access to it."
    return ValidationError(code=Code.INVALID_REQUEST.value, message=message, param="file_id")


def large_file(size: int, most: int) -> ValidationError:
    message = f"The input file has {size} bytes; a batch takes at most {most}. Split it into several batches."
    return ValidationError(code=Code.INVALID_REQUEST.value, message=message, param="file_id")


def over_quota(excess: Excess) -> ValidationError:
    """More lines or tokens than the tenant may have enqueued."""
    what = "lines" if excess.quota is Quota.ENQUEUED_LINES else "tokens"
    message = f"Enqueued {what} limit reached. Limit: {excess.limit:,} enqueued {what}; "
    if excess.asked > excess.limit:
        message += f"this batch alone has {excess.asked:,}. Split it into smaller batches."
    else:
        message += (
            f"{excess.used:,} are enqueued and this batch has {excess.asked:,}. "
            "Please try again once some in_progress batches have been completed."
        )
    return ValidationError(code=Code.TOKEN_LIMIT_EXCEEDED.value, message=message)
