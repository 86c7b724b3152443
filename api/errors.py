"""Errors in the format that OpenAI's clients read: `{"error": {"message", "type", "param", "code"}}`."""

from collections.abc import Mapping

import orjson
from fastapi import Response

from batchwright.contracts.terms import ValidationError
from batchwright.rules.input.validation_errors import ValidationCode

RETRY_AFTER_SECONDS = 5
_FINAL = {"x-should-retry": "false"}
NO_HINTS: Mapping[str, str] = {}
IDEMPOTENCY_KEY_HINT = {"idempotency_key": "Send the key in the header Idempotency-Key."}


class ApiError(Exception):
    """An error response. The client gets all fields of this object: status, message, code, parameter and
    headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})


def invalid_value(param: str, message: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)


def one_of(text: str, param: str, *values: str) -> str:
    """Check that `text` is one of `values`, and return it.

    Args:
        param: name of the parameter, for the error message.

    Raises:
        ApiError: `text` is not one of `values` (400).
    """
    if text not in values:
        supported = ", ".join(f"'{value}'" for value in values)
        raise invalid_value(param, f"Invalid value: '{text}'. Supported values are: {supported}.")
    return text


def missing_parameter(param: str) -> ApiError:
    message = f"Missing required parameter: '{param}'."
    return ApiError(400, message, code="missing_required_parameter", param=param)


def unknown_parameter(param: str, hints: Mapping[str, str] = NO_HINTS) -> ApiError:
    """Return the error for a parameter that the API does not know.

    Args:
        param: name of the parameter.
        hints: maps wrong names that clients often use to a sentence that says what to send instead.
    """
    message = f"Unknown parameter: '{param}'. {hints.get(param, '')}".rstrip()
    return ApiError(400, message, code="unknown_parameter", param=param)


def invalid_type(param: str, expected: str, got: str) -> ApiError:
    """Return the error for a parameter whose value has the wrong type.

    `expected` and `got` are JSON types with an article, such as "a string".
    """
    message = f"Invalid type for '{param}': expected {expected}, but got {got} instead."
    return ApiError(400, message, code="invalid_type", param=param)


def conflict(message: str, *, code: str | None = None, param: str | None = None) -> ApiError:
    """Return a 409 error. The header `x-should-retry: false` tells clients not to send the request again."""
    return ApiError(409, message, code=code, param=param, headers=_FINAL)


def rate_limited(
    message: str, limit: int, *, seconds: int = RETRY_AFTER_SECONDS, window: int | None = None
) -> ApiError:
    """Return the 429 error for a client that has reached a limit, such as a number of requests per minute.

    The error has the rate limit headers of OpenAI's API and of the IETF draft (`RateLimit`).

    Args:
        limit: number of requests or objects that are allowed.
        seconds: seconds until the client may retry.
        window: period of the limit in seconds, such as 60 for a limit per minute; None if it has no period.
    """
    headers = {
        "Retry-After": str(seconds),
        "RateLimit-Policy": f'"requests";q={limit}' + (f";w={window}" if window else ""),
        "RateLimit": f'"requests";r=0;t={seconds}',
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": f"{seconds}s",
    }
    return ApiError(429, message, code="rate_limit_exceeded", headers=headers)


def storage_quota_exceeded(limit: int, used: int) -> ApiError:
    """Return a 429 error for a storage quota that is used up. `limit` and `used` are in bytes.

    The header `x-should-retry: false` tells clients not to retry, because a retry would send the whole file
    again.
    """
    message = (
        f"Too many bytes are stored: of at most {limit}, {used} are taken. Delete files, or let them expire."
    )
    headers = {
        "Retry-After": str(RETRY_AFTER_SECONDS),
        "RateLimit-Policy": f'"bytes";q={limit}',
        "RateLimit": f'"bytes";r={max(limit - used, 0)}',
        **_FINAL,
    }
    return ApiError(429, message, code="rate_limit_exceeded", headers=headers)


def webhook_quota_exceeded(limit: int) -> ApiError:
    """Return a 429 error for too many webhooks. `limit` is the number of webhooks that a tenant may have."""
    return _too_many(
        "webhooks", limit, "Delete one, or give a batch a webhook of its own in `x_batchwright.webhook`."
    )


def schedule_quota_exceeded(limit: int) -> ApiError:
    """Return a 429 error for too many schedules. `limit` is the number of schedules that a tenant may
    have.
    """
    return _too_many("schedules", limit, "Delete one first.")


def _too_many(objects: str, limit: int, remedy: str) -> ApiError:
    """Return the 429 error for a tenant that has too many objects of one kind. A header tells clients not to
    retry.

    Args:
        objects: name of the kind in the plural, such as "schedules".
        limit: number of objects that the tenant may have.
        remedy: sentence that says what the tenant can do.
    """
    message = f"Too many {objects}: you may have at most {limit}. {remedy}"
    headers = {
        "Retry-After": str(RETRY_AFTER_SECONDS),
        "RateLimit-Policy": f'"{objects}";q={limit}',
        "RateLimit": f'"{objects}";r=0',
        **_FINAL,
    }
    return ApiError(429, message, code="rate_limit_exceeded", headers=headers)


def payload_too_large(limit: int, what: str = "file") -> ApiError:
    return ApiError(413, f"The {what} is too large: at most {limit} bytes are allowed.", param=what)


def damaged_archive(error: Exception) -> ApiError:
    return ApiError(400, str(error), code="damaged_archive", param="file")


def expanded_file_too_large(limit: int) -> ApiError:
    message = f"The file is compressed, and too large when expanded: at most {limit} bytes are allowed."
    return ApiError(413, message, code="expanded_file_too_large", param="file")


def input_refused(error: ValidationError) -> ApiError:
    """Return the error for an object in S3 that cannot be used as the input of a batch.

    A batch with this input would fail with the same error code.

    Args:
        error: the reason why the object cannot be used.
    """
    statuses: dict[str, int] = {
        ValidationCode.INPUT_NOT_FOUND: 404,
        ValidationCode.INPUT_CHANGED: 409,
        ValidationCode.INPUT_TOO_LARGE: 413,
    }
    status = statuses.get(error.code, 400)
    return ApiError(status, error.message, code=error.code, param=error.param, headers=_FINAL)


def estimate_too_slow(seconds: float) -> ApiError:
    """Return the 503 error for an estimate whose input could not be read within `seconds`. A header tells
    clients not to retry.
    """
    message = f"The input was not read within {seconds:g} s. Create the batch without an estimate."
    return ApiError(503, message, code="estimate_too_slow", param="input_file_id", headers=_FINAL)


def file_not_found(file_id: str) -> ApiError:
    return ApiError(404, f"No such File object: {file_id}", param="id")


def upload_not_found(upload_id: str) -> ApiError:
    return ApiError(404, f"No such Upload object: {upload_id}", param="id")


def webhook_not_found(webhook_id: str) -> ApiError:
    return ApiError(404, f"No such Webhook object: {webhook_id}", param="id")


def schedule_not_found(schedule_id: str) -> ApiError:
    return ApiError(404, f"No such Schedule object: {schedule_id}", param="id")


def delivery_not_found(delivery_id: str) -> ApiError:
    return ApiError(404, f"No such delivery: {delivery_id}", param="id")


def call_not_found(call_id: str) -> ApiError:
    message = f"No call found with id '{call_id}'. Its answer is kept for a day after its end."
    return ApiError(404, message, param="id")


def no_room(message: str) -> ApiError:
    """Return the 429 error for a request that exceeds a limit of the API, such as the limit of open
    connections. The header Retry-After says when the client may retry.
    """
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return ApiError(429, message, code="resource_unavailable", headers=headers)


def model_not_found(model: str) -> ApiError:
    """Return the error for a model that no backend serves, or that the tenant may not use."""
    message = f"The model '{model}' does not exist or you do not have access to it."
    return ApiError(404, message, code="model_not_found", param="model")


def budget_used_up(message: str) -> ApiError:
    """Return the 429 error for a caller whose daily budget of tokens or cost is used up. A header tells
    clients not to retry.
    """
    return ApiError(429, message, code="insufficient_quota", headers=_FINAL)


def batch_not_found(batch_id: str) -> ApiError:
    return ApiError(404, f"No batch found with id '{batch_id}'.")


def error_response(error: ApiError) -> Response:
    kind = "requests" if error.status == 429 else "invalid_request_error"
    details = {
        "message": error.message,
        "type": "server_error" if error.status >= 500 else kind,
        "param": error.param,
        "code": error.code,
    }
    return Response(orjson.dumps({"error": details}), error.status, error.headers, "application/json")


def internal_error_response() -> Response:
    """Return the 500 response for an unexpected exception. It does not show the exception."""
    return error_response(ApiError(500, "The server had an error while processing your request."))
