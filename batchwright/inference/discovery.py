"""Request information from a backend about itself: its models, and how many requests it can process at once.

Only servers of llama.cpp report how many requests they can process at once.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import httpx
from pydantic import BaseModel, PositiveInt, ValidationError

from batchwright.inference.transport.base import (
    BackendRequest,
    BackendResponse,
    Header,
    ResponseTooLarge,
    TargetUrl,
    Transport,
)
from batchwright.inference.transport.decoding import decode_content
from batchwright.rules.ids import is_model_name

_TIMEOUT_SECONDS = 5.0
_MAX_ERROR_CHARS = 300  # an error may quote a long response


class ModelListing(NamedTuple):
    """Result of a request for a backend's model list.

    Attributes:
        models: the usable model ids, sorted.
        backend_time: date of the response; None if it has no valid date.
        ignored: number of listed ids that are not in `models`. An id is ignored if it is an invalid name, or
            if the backend lists too many ids.
    """

    models: list[str]
    backend_time: datetime | None
    ignored: int


class ListingFailed(Exception):
    """Raised if a backend does not return a valid list of its models. The message has the reason.

    Attributes:
        is_unreachable: True if there was no valid HTTP response, or if the status is 502, 503 or 504.
        status: HTTP status; 0 if there was no response.
    """

    def __init__(
        self,
        message: str,
        *,
        is_unreachable: bool,
        status: int,
        backend_time: datetime | None,
    ) -> None:
        super().__init__(message)
        self.is_unreachable, self.status, self.backend_time = is_unreachable, status, backend_time


class _Model(BaseModel):
    id: str


class _ModelList(BaseModel):
    data: list[_Model]


class _Properties(BaseModel):
    total_slots: PositiveInt


async def list_models(
    transport: Transport, url: str, headers: Sequence[Header], *, max_bytes: int, max_models: int
) -> ModelListing:
    """Request the model list of the backend at `url` and return its usable ids.

    Args:
        url: the backend's URL, without `/v1`.
        max_bytes: maximum size of the response, in bytes.
        max_models: maximum number of ids to return. The first ids in sorted order are returned.

    Raises:
        ListingFailed: the request failed, or the response is not a list of models. No other exception is
            raised.
    """
    endpoint = f"{url}/v1/models"
    try:
        request = BackendRequest(b"GET", TargetUrl.of(endpoint), [*headers])
        response = await transport.exchange(request, max_bytes=max_bytes, seconds=_TIMEOUT_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise _failed(endpoint, error, is_unreachable=True) from error
    except Exception as error:  # the response is untrusted, and must not end the worker
        raise _failed(endpoint, error, is_unreachable=False) from error
    backend_time, status = _response_date(response), response.status
    if status != 200:
        raise ListingFailed(
            f"{endpoint} answered {status}",
            is_unreachable=status in (502, 503, 504),
            status=status,
            backend_time=backend_time,
        )
    try:
        found = _ModelList.model_validate_json(decode_content(response, max_bytes))
    except Exception as error:  # the response is untrusted
        raise _failed(endpoint, error, is_unreachable=False, status=200, backend_time=backend_time) from error
    valid = sorted({model.id for model in found.data if is_model_name(model.id)})
    models = valid[:max_models]
    return ModelListing(models, backend_time, ignored=len({model.id for model in found.data}) - len(models))


async def read_slots(
    transport: Transport, url: str, headers: Sequence[Header], *, max_bytes: int
) -> int | None:
    """Return the number of requests that a llama.cpp server at `url` processes at the same time.

    The number is read from the path `/props`. Return None for other backends.

    Args:
        url: the backend's URL, without `/v1`.
        max_bytes: maximum size of the response, in bytes.
    """
    try:
        request = BackendRequest(b"GET", TargetUrl.of(f"{url}/props"), [*headers])
        response = await transport.exchange(request, max_bytes=max_bytes, seconds=_TIMEOUT_SECONDS)
        return _Properties.model_validate_json(decode_content(response, max_bytes)).total_slots
    except Exception:  # the response is untrusted
        return None


def _failed(
    endpoint: str,
    error: Exception,
    *,
    is_unreachable: bool,
    status: int = 0,
    backend_time: datetime | None = None,
) -> ListingFailed:
    if isinstance(error, ValidationError):
        problem = "the response is not a list of models"
    elif isinstance(error, (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ResponseTooLarge)):
        problem = str(error)[:_MAX_ERROR_CHARS] or type(error).__name__
    else:
        problem = f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]
    return ListingFailed(
        f"{endpoint}: {problem}", is_unreachable=is_unreachable, status=status, backend_time=backend_time
    )


def _response_date(response: BackendResponse) -> datetime | None:
    """Return the time in the Date header of a response, with a time zone.

    Return None if the header is missing or invalid.
    """
    try:
        date = parsedate_to_datetime(response.headers[b"date"].decode("ascii"))
        return date if date.tzinfo else date.replace(tzinfo=UTC)
    except (KeyError, ValueError, OverflowError):
        return None
