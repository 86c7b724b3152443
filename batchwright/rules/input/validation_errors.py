"""Collect the validation errors of an input, with OpenAI's codes and messages.

At most 1,000 errors are listed, but all are counted.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from batchwright.contracts.model_registry.price_config import PriceConfig, describe_mixed_currencies
from batchwright.contracts.temporal_payloads.batch import BatchOrder, StartForecast
from batchwright.contracts.terms import Quota, ValidationError
from batchwright.rules.duration_text import duration_text
from batchwright.rules.json_text import storable
from batchwright.rules.tenants.quotas import QuotaExcess

MAX_LISTED = 1_000


class ValidationCode(StrEnum):
    """The `code` of a validation error."""

    INVALID_REQUEST = "invalid_request"
    EMPTY_FILE = "empty_file"
    INVALID_JSON_LINE = "invalid_json_line"
    MISSING_REQUIRED_PARAMETER = "missing_required_parameter"
    DUPLICATE_CUSTOM_ID = "duplicate_custom_id"
    DUPLICATE_PARAMETER = "duplicate_parameter"
    INVALID_METHOD = "invalid_method"
    INVALID_URL = "invalid_url"
    INVALID_TYPE = "invalid_type"
    STREAMING_UNSUPPORTED = "streaming_unsupported"
    MISMATCHED_MODEL = "mismatched_model"
    MODEL_NOT_FOUND = "model_not_found"
    TOO_MANY_EMBEDDING_INPUTS = "too_many_embedding_inputs"
    LINE_TOO_LONG = "line_too_long"
    TOO_MANY_MODELS = "too_many_models"
    TOO_MANY_TASKS = "too_many_tasks"
    TOO_MANY_ERRORS = "too_many_errors"
    TOKEN_LIMIT_EXCEEDED = "token_limit_exceeded"
    COMPLETION_WINDOW_TOO_SHORT = "completion_window_too_short"
    PRICE_MISSING = "price_missing"
    MIXED_CURRENCIES = "mixed_currencies"
    LOCATION_NOT_ALLOWED = "location_not_allowed"
    INPUT_NOT_FOUND = "input_not_found"
    INPUT_CHANGED = "input_changed"
    INPUT_UNREADABLE = "input_unreadable"
    INPUT_TOO_LARGE = "input_too_large"
    DAMAGED_ARCHIVE = "damaged_archive"
    STORAGE_QUOTA_EXCEEDED = "storage_quota_exceeded"


class ValidationErrors:
    """A collection of the validation errors of a batch's input, in the order of its lines.

    `count` is the number of all errors, including errors that are not listed.
    """

    def __init__(self) -> None:
        self.count = 0
        self._errors: list[ValidationError] = []

    def add(
        self, code: ValidationCode, message: str, *, param: str | None = None, line: int | None = None
    ) -> None:
        self.count += 1
        if len(self._errors) < MAX_LISTED:
            self._errors.append(ValidationError(code=code.value, message=message, param=param, line=line))

    def as_list(self) -> list[ValidationError]:
        """Return the errors to show to the client.

        If there are more than MAX_LISTED errors, the list ends with an additional error, which says how many
        there are.
        """
        if self.count <= MAX_LISTED:
            return list(self._errors)
        shown = MAX_LISTED - 1
        message = f"The input has {self.count} errors; only the first {shown} are listed."
        notice = ValidationError(code=ValidationCode.TOO_MANY_ERRORS.value, message=message)
        return [*self._errors[:shown], notice]


def file_not_found(file_id: str, tenant: str) -> ValidationError:
    message = f"Cannot find file {file_id}, or organization {tenant} does not have access to it."
    return ValidationError(code=ValidationCode.INVALID_REQUEST.value, message=message, param="file_id")


def file_too_large(size: int, max_bytes: int) -> ValidationError:
    message = (
        f"The input file has {size} bytes; a batch takes at most {max_bytes}. Split it into several batches."
    )
    return ValidationError(code=ValidationCode.INVALID_REQUEST.value, message=message, param="file_id")


def quota_exceeded(excess: QuotaExcess) -> ValidationError:
    """Return the validation error for a batch that exceeds its tenant's quota of enqueued lines or tokens."""
    what = "lines" if excess.quota is Quota.ENQUEUED_LINES else "tokens"
    message = f"Enqueued {what} limit reached. Limit: {excess.limit:,} enqueued {what}; "
    if excess.requested > excess.limit:
        message += f"this batch alone has {excess.requested:,}. Split it into smaller batches."
    else:
        message += (
            f"{excess.used:,} are enqueued and this batch has {excess.requested:,}. "
            "Please try again once some in_progress batches have been completed."
        )
    return ValidationError(code=ValidationCode.TOKEN_LIMIT_EXCEEDED.value, message=message)


def price_problem(
    order: BatchOrder, models: Iterable[str], prices: Mapping[str, PriceConfig]
) -> ValidationError | None:
    """Return an error if the batch must not run because of its models' prices; None if it may run.

    There are two such cases:

    - The prices have different currencies, so the cost of the batch has no currency.
    - The batch has a cap on its cost, and one of its models has no prices, so the cost is not known.

    Args:
        order: description of the batch, which may have a cap on its cost.
        models: the models of its lines.
        prices: prices by model.
    """
    if problem := describe_mixed_currencies(prices):
        message = (
            f"The cost of this batch has no currency, because {problem}. Ask the operator to correct it."
        )
        return ValidationError(code=ValidationCode.MIXED_CURRENCIES.value, message=message)
    unpriced = sorted(set(models) - prices.keys())
    if order.max_cost is None or not unpriced:
        return None
    message = (
        f"The batch has a cap of {order.max_cost} on its cost, but the model '{storable(unpriced[0])}' has "
        "no prices. Ask the operator to set its `prices`, or leave out `x_batchwright.max_cost`."
    )
    param = "x_batchwright.max_cost"
    return ValidationError(code=ValidationCode.PRICE_MISSING.value, message=message, param=param)


def window_too_short(order: BatchOrder, forecast: StartForecast) -> ValidationError:
    """Return the error for a batch that is refused because it cannot end within its completion window.

    Args:
        order: description of the batch.
        forecast: when the batch would probably end.
    """
    left = (order.deadline - forecast.made_at).total_seconds()
    ahead = f", with {forecast.lines_ahead:,} lines of other batches first" if forecast.lines_ahead else ""
    least, likely = duration_text(forecast.soonest_seconds), duration_text(forecast.p50_seconds)
    message = (
        f"The batch cannot be done within its completion window of {order.completion_window}. By the "
        f"forecast of {forecast.made_at:%Y-%m-%d %H:%M:%S} UTC, it takes at least {least} and probably "
        f"{likely}{ahead}, but {duration_text(max(left, 0.0))} of the window were left. "
        "Use a longer window, split the batch, or create it again when fewer lines wait."
    )
    code = ValidationCode.COMPLETION_WINDOW_TOO_SHORT.value
    return ValidationError(code=code, message=message, param="completion_window")
