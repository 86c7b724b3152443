"""/admin/dlq: lines that failed after their last attempt, of all tenants; asked again, or deleted."""

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from api.batches import BatchRoutes
from api.bodies import check_text, optional_body, read_optional, refuse_unknown
from api.creation import NO_NUL, ChanceBody, read_window
from api.errors import ApiError
from api.letters import LetterRetries
from api.objects import BatchObject, answer, batch_object
from api.parameters import limit_schema, pattern_schema
from api.responses import errors
from api.services import Services
from batchwright.database.dead_letters_base import Buried
from batchwright.database.errors import UnknownCursor
from batchwright.rules.paging import page_limit

logger = logging.getLogger(__name__)
_BATCHES_AT_ONCE = 20


class LetterError(BaseModel):
    """`status_code` is of the last HTTP answer, `code` of the line where there was none."""

    status_code: int | None
    code: str | None
    message: str


class DeadLetterObject(BaseModel):
    """`id` is the line's in the error file; `retried_as` the batch that asks it again."""

    id: str
    object: Literal["dead_letter"] = "dead_letter"
    tenant: str
    batch_id: str
    custom_id: str
    model: str
    attempts: int
    error: LetterError
    failed_at: int
    retried_as: str | None


class DeadLetterPage(BaseModel):
    object: Literal["list"] = "list"
    data: list[DeadLetterObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedLetter(BaseModel):
    id: str
    object: Literal["dead_letter"] = "dead_letter"
    deleted: Literal[True] = True


class RetriedObject(BaseModel):
    """`origin` is the letters' batch; `batch_id` the one that asks them again, null: `refused` says why."""

    tenant: str
    origin: str
    batch_id: str | None
    refused: str | None = None


class RetriedPage(BaseModel):
    """`has_more`: go on with `after` = `last_id`."""

    object: Literal["list"] = "list"
    data: list[RetriedObject]
    last_id: str | None
    has_more: bool


class RetryAllBody(ChanceBody):
    """Which letters: without anything all of them."""

    tenant: str | None = Field(None, pattern=NO_NUL)
    batch_id: str | None = Field(None, pattern=NO_NUL)
    after: str | None = Field(None, pattern=NO_NUL, description="an id of a batch: go on behind it")


_Text = Annotated[str | None, Query(), pattern_schema(NO_NUL)]


class DeadLetterRoutes:
    def __init__(self, services: Services) -> None:
        self._settings, self._letters = services.settings, services.database.dead_letters
        self._retries = LetterRetries(services, BatchRoutes(services))

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/dlq", tags=["Operation"])
        one = "/{letter_id}"
        router.add_api_route("", self.list, response_model=DeadLetterPage, responses=errors(404))
        router.add_api_route(
            "/retry-all",
            self.retry_all,
            methods=["POST"],
            response_model=RetriedPage,
            openapi_extra=optional_body(RetryAllBody),
            responses=errors(),
        )
        router.add_api_route(
            one + "/retry",
            self.retry,
            methods=["POST"],
            response_model=BatchObject,
            openapi_extra=optional_body(ChanceBody),
            responses=errors(404, 409, 429),
        )
        router.add_api_route(
            one, self.delete, methods=["DELETE"], response_model=DeletedLetter, responses=errors(404)
        )
        return router

    async def list(
        self,
        tenant: _Text = None,
        batch_id: _Text = None,
        limit: Annotated[str | None, Query(), limit_schema(20, 100)] = None,
        after: Annotated[str | None, Query(description="a dead letter's id")] = None,
    ) -> Response:
        """List dead letters, the latest first."""
        most = page_limit(limit, default=20, most=100)
        for name, text in (("tenant", tenant), ("batch_id", batch_id)):
            if text is not None:
                check_text(text, name)
        try:
            rows, more = await self._letters.page(tenant=tenant, batch_id=batch_id, limit=most, after=after)
        except UnknownCursor as error:
            raise _no_letter(error.id) from None
        data = [_object(row) for row in rows]
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return answer(DeadLetterPage(data=data, first_id=first, last_id=last, has_more=more))

    async def retry(self, request: Request, letter_id: str) -> Response:
        """Make a batch of the line. Asked again, it answers with the batch that was made first."""
        fields = await read_optional(request)
        refuse_unknown(fields, ChanceBody.model_fields)
        found = await self._letters.get(letter_id)
        if found is None:
            raise _no_letter(letter_id)
        row = await self._retries.one(found, fields)
        logger.info("a dead letter is retried", extra={"batch_id": row.order.batch_id})
        return answer(batch_object(row))

    async def retry_all(self, request: Request) -> Response:
        """Make a batch of each batch's letters that nobody asks again, 20 batches at a call."""
        fields = await read_optional(request)
        refuse_unknown(fields, RetryAllBody.model_fields)
        tenant, batch_id, after = (_text(fields, name) for name in ("tenant", "batch_id", "after"))
        window = {"completion_window": fields.get("completion_window")}
        if window["completion_window"] is not None:
            read_window(window["completion_window"], self._settings)
        origins = await self._letters.origins(
            tenant=tenant, batch_id=batch_id, limit=_BATCHES_AT_ONCE + 1, after=after or ""
        )
        data: list[RetriedObject] = []
        for owner, origin in origins[:_BATCHES_AT_ONCE]:
            data += await self._retry_all_of(owner, origin, window)
        logger.info("dead letters are retried", extra={"batches": len(data)})
        last = origins[:_BATCHES_AT_ONCE][-1][1] if origins else None
        return answer(RetriedPage(data=data, last_id=last, has_more=len(origins) > _BATCHES_AT_ONCE))

    async def _retry_all_of(
        self, tenant: str, origin: str, fields: Mapping[str, object]
    ) -> Sequence[RetriedObject]:
        """One batch that cannot be retried keeps none of the others from it."""
        try:
            rows = await self._retries.all_of(tenant, origin, fields)
        except ApiError as error:
            return [RetriedObject(tenant=tenant, origin=origin, batch_id=None, refused=error.message)]
        return [RetriedObject(tenant=tenant, origin=origin, batch_id=row.order.batch_id) for row in rows]

    async def delete(self, letter_id: str) -> Response:
        """Take a letter off the list. The line stays in the error file of its batch."""
        if not await self._letters.delete(letter_id):
            raise _no_letter(letter_id)
        return answer(DeletedLetter(id=letter_id))


def _object(found: Buried) -> DeadLetterObject:
    letter = found.letter
    return DeadLetterObject(
        id=letter.id,
        tenant=found.tenant,
        batch_id=found.batch_id,
        custom_id=letter.custom_id,
        model=letter.model,
        attempts=letter.attempts,
        error=LetterError(status_code=letter.status, code=letter.code, message=letter.message),
        failed_at=int(letter.failed_at.timestamp()),
        retried_as=found.retry and found.retry.batch_id,
    )


def _text(fields: Mapping[str, object], name: str) -> str | None:
    value = fields.get(name)
    return None if value is None else check_text(value, name)


def _no_letter(id: str) -> ApiError:
    return ApiError(404, f"No dead letter found with id '{id}'.", param="id")
