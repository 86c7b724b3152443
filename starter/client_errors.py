"""Errors for failed calls of the API. Their messages tell the user what to do."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus

import httpx
from pydantic import BaseModel, ValidationError

_STORAGE_LEFT = re.compile(r'"bytes";r=([0-9]+)')  # header RateLimit after a reached storage quota


class ClientError(Exception):
    """An error that is raised if a call to the API failed. The message is shown to the user.

    Attributes:
        is_transient: True if the same call may succeed soon, for example after a timeout.
        is_rejected: True if it is certain that the API has rejected the request and changed nothing.
        code: error code of the API, such as `model_not_found`; None if there is none.
        status: HTTP status of the response; None if there was no response.
        storage_left: number of bytes that the tenant may still store. None if the tenant's storage quota was
            not the reason for the error.
    """

    storage_left: int | None = None

    def __init__(
        self,
        message: str,
        *,
        is_transient: bool = False,
        is_rejected: bool = False,
        code: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.is_transient, self.is_rejected = is_transient, is_rejected
        self.code, self.status = code, status


def error_of(response: httpx.Response, url: str) -> ClientError:
    """Return the error for a response whose status is 4xx or 5xx. `url` is the address of the API."""
    code = None
    try:
        error = _ErrorBody.model_validate_json(response.content).error
        message, code = error.message, error.code
    except ValidationError:
        message = (
            f"The server at {url} returned status {response.status_code} without an error message; "
            "check BATCHWRIGHT_URL."
        )
    if response.status_code == 401:
        message += " Set BATCHWRIGHT_API_KEY to a valid key."
    # 408 says that the request came too slowly, and not that another one would be refused.
    is_too_slow = response.status_code == HTTPStatus.REQUEST_TIMEOUT
    failure = ClientError(
        message,
        is_transient=is_too_slow or response.status_code in (429, 502, 503, 504),
        is_rejected=response.is_client_error and not is_too_slow,
        code=code,
        status=response.status_code,
    )
    if found := _STORAGE_LEFT.match(response.headers.get("ratelimit", "")):
        failure.storage_left = int(found[1])
    return failure


@contextmanager
def translated_errors(url: str) -> Generator[None]:
    """Context manager that converts exceptions of httpx to ClientError. `url` is the address of the API."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout):
        raise ClientError(
            f"No server answers at {url}: start `batchwright dev`, or set BATCHWRIGHT_URL or --url.",
            is_transient=True,
        ) from None
    except httpx.TimeoutException:
        raise ClientError(f"{url} did not respond in time; try again.", is_transient=True) from None
    except (UnicodeEncodeError, httpx.LocalProtocolError) as error:
        message = f"The request cannot be sent: a header or the body is not valid ({error})."
        raise ClientError(message, is_rejected=True) from None
    except httpx.HTTPError as error:
        detail = str(error) or type(error).__name__
        raise ClientError(
            f"The connection to {url} broke ({detail}); try again.", is_transient=True
        ) from None
    except httpx.InvalidURL as error:
        raise ClientError(f"{url!r} is not a usable URL ({error}); set BATCHWRIGHT_URL or --url.") from None


class _ErrorDetail(BaseModel):
    message: str
    code: str | None = None


class _ErrorBody(BaseModel):
    error: _ErrorDetail
