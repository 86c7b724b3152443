"""What a backend tells of itself at /v1/models."""

from collections.abc import Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import httpx
from pydantic import BaseModel, ValidationError

from batchwright.inference.engine import Answer, AnswerTooLarge, Engine, Header, Request, Target
from batchwright.inference.unpacking import unpacked

_SECONDS = 5.0


class Listing(NamedTuple):
    """Ids of models; `told_at` is the backend's own time, where it tells that."""

    models: list[str]
    told_at: datetime | None = None


class ListingFailed(Exception):
    """A backend does not tell its models; the message says how.

    `is_away`: nothing says that it can be asked anything. `status` is 0 without an answer.
    """

    def __init__(
        self, message: str, *, is_away: bool = True, status: int = 0, told_at: datetime | None = None
    ) -> None:
        super().__init__(message)
        self.is_away, self.status, self.told_at = is_away, status, told_at


class _Model(BaseModel):
    id: str


class _ModelList(BaseModel):
    data: list[_Model]


async def listed(engine: Engine, url: str, headers: Sequence[Header], *, most_bytes: int) -> Listing:
    """Of the backend at `url`. Raises ListingFailed."""
    place = f"{url}/v1/models"
    try:
        request = Request(b"GET", Target.of(place), [*headers])
        answer = await engine.exchange(request, most_bytes=most_bytes, seconds=_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, AnswerTooLarge) as error:
        away = not isinstance(error, AnswerTooLarge)
        raise ListingFailed(f"{place}: {error or type(error).__name__}", is_away=away) from error
    told_at = _told_at(answer)
    if answer.status != 200:
        message, away = f"{place} answered {answer.status}", answer.status in (502, 503, 504)
        raise ListingFailed(message, is_away=away, status=answer.status, told_at=told_at)
    try:
        body = unpacked(answer, most_bytes)
        return Listing([model.id for model in _ModelList.model_validate_json(body).data], told_at)
    except (httpx.DecodingError, ValidationError, AnswerTooLarge) as error:
        raise ListingFailed(
            f"{place}: {error or type(error).__name__}", is_away=False, status=200, told_at=told_at
        ) from error


def _told_at(answer: Answer) -> datetime | None:
    try:
        return parsedate_to_datetime(answer.headers[b"date"].decode("ascii"))
    except (KeyError, ValueError):
        return None
