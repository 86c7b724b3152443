"""/admin/dlq: list, retry and delete dead letters (lines that used up their attempts); for operators."""

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from batchwright.api.audit_log.operator_targets import DeadLettersTarget, DeadLetterTarget
from batchwright.api.audit_log.recorder import AuditLog
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError
from batchwright.api.openapi import error_responses, limit_schema, pattern_schema
from batchwright.api.schemas.batch_create import NO_NUL, parse_window
from batchwright.api.schemas.batch_rerun import RerunBody
from batchwright.api.schemas.json_body import (
    check_text,
    optional_body_spec,
    read_optional_object,
    reject_unknown,
)
from batchwright.api.schemas.openai_objects import batch_object, json_response
from batchwright.api.services.batches.dead_letter_retry import DeadLetterRetries
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.operator import (
    DeadLetterError,
    DeadLetterObject,
    DeadLetterPage,
    DeadLetterRetryObject,
    DeadLetterRetryPage,
    DeletedDeadLetter,
)
from batchwright.contracts.api_objects.pages import page_of
from batchwright.database.errors import UnknownCursor
from batchwright.database.tables.batches.dead_letters import StoredDeadLetter
from batchwright.rules.pagination import page_limit

logger = logging.getLogger(__name__)
_BATCHES_PER_CALL = 20


class RetryAllBody(RerunBody):
    """The body of a request to retry dead letters (lines that used up their attempts). The fields select the
    dead letters. If the body is empty, all dead letters are selected.
    """

    tenant: str | None = Field(None, pattern=NO_NUL)
    batch_id: str | None = Field(None, pattern=NO_NUL)
    after: str | None = Field(None, pattern=NO_NUL, description="batch id after which to continue")


_TextQuery = Annotated[str | None, Query(), pattern_schema(NO_NUL)]


class DeadLetterRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._settings, self._dead_letters = deps.settings, deps.database.dead_letters
        self._retries, self._audit_log = DeadLetterRetries(deps), AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/dlq", tags=["Operation"])
        one = "/{letter_id}"
        router.add_api_route("", self.list, response_model=DeadLetterPage, responses=error_responses(404))
        router.add_api_route(
            "/retry-all",
            self.retry_all,
            methods=["POST"],
            response_model=DeadLetterRetryPage,
            openapi_extra=optional_body_spec(RetryAllBody),
            responses=error_responses(),
            dependencies=self._audit_log.of_operator(AuditAction.DEAD_LETTER_RETRY_ALL, DeadLettersTarget),
        )
        router.add_api_route(
            one + "/retry",
            self.retry,
            methods=["POST"],
            response_model=BatchObject,
            openapi_extra=optional_body_spec(RerunBody),
            responses=error_responses(404, 409, 429),
            dependencies=self._audit_log.of_operator(AuditAction.DEAD_LETTER_RETRY, DeadLetterTarget),
        )
        router.add_api_route(
            one,
            self.delete,
            methods=["DELETE"],
            response_model=DeletedDeadLetter,
            responses=error_responses(404),
            dependencies=self._audit_log.of_operator(AuditAction.DEAD_LETTER_DELETE, DeadLetterTarget),
        )
        return router

    async def list(
        self,
        tenant: _TextQuery = None,
        batch_id: _TextQuery = None,
        limit: Annotated[str | None, Query(), limit_schema(20, 100)] = None,
        after: Annotated[str | None, Query(description="id of a dead letter")] = None,
    ) -> Response:
        """List dead letters, newest first. A dead letter is a line that failed after its last attempt."""
        page_size = page_limit(limit, default=20, maximum=100)
        for name, text in (("tenant", tenant), ("batch_id", batch_id)):
            if text is not None:
                check_text(text, name)
        try:
            rows, more = await self._dead_letters.page(
                tenant=tenant, batch_id=batch_id, limit=page_size, after=after
            )
        except UnknownCursor as error:
            raise _dead_letter_not_found(error.id) from None
        data = [_dead_letter_object(row) for row in rows]
        return json_response(page_of(DeadLetterPage, data, more=more))

    async def retry(self, request: Request, letter_id: str) -> Response:
        """Create a batch that retries one dead letter (a line that used up its attempts). A repeated call
        returns the same batch.
        """
        fields = await read_optional_object(request)
        reject_unknown(fields, RerunBody.model_fields)
        found = await self._dead_letters.get(letter_id)
        if found is None:
            raise _dead_letter_not_found(letter_id)
        row = await self._retries.retry_one(found, fields)
        logger.info("dead letter retried", extra={"batch_id": row.order.batch_id})
        return json_response(batch_object(row))

    async def retry_all(self, request: Request) -> Response:
        """Retry all dead letters (lines that used up their attempts) that were not retried yet.

        Each call creates at most 20 batches. Each new batch contains the dead letters of one ended batch.
        """
        fields = await read_optional_object(request)
        reject_unknown(fields, RetryAllBody.model_fields)
        tenant, batch_id, after = (_optional_text(fields, name) for name in ("tenant", "batch_id", "after"))
        window = {"completion_window": fields.get("completion_window")}
        if window["completion_window"] is not None:
            parse_window(window["completion_window"], self._settings)
        origins = await self._dead_letters.retryable_batches(
            tenant=tenant, batch_id=batch_id, limit=_BATCHES_PER_CALL + 1, after=after or ""
        )
        data: list[DeadLetterRetryObject] = []
        for owner, origin in origins[:_BATCHES_PER_CALL]:
            data += await self._retry_all_of(owner, origin, window)
        logger.info("dead letters retried", extra={"batches": len(data)})
        last = origins[:_BATCHES_PER_CALL][-1][1] if origins else None
        return json_response(
            DeadLetterRetryPage(data=data, last_id=last, has_more=len(origins) > _BATCHES_PER_CALL)
        )

    async def _retry_all_of(
        self, tenant: str, origin: str, fields: Mapping[str, object]
    ) -> Sequence[DeadLetterRetryObject]:
        """Retry the dead letters (lines that used up their attempts) of one ended batch. Return one object
        for each batch that was started for the retry.

        If the retry is rejected, for example because of a quota, raise no error. Return one object with the
        reason in the field `refused`, so that the caller can continue with other batches.

        Args:
            tenant: tenant of the ended batch.
            origin: id of the ended batch.
            fields: body of the request.
        """
        try:
            rows = await self._retries.retry_all(tenant, origin, fields)
        except ApiError as error:
            return [DeadLetterRetryObject(tenant=tenant, origin=origin, batch_id=None, refused=error.message)]
        return [
            DeadLetterRetryObject(tenant=tenant, origin=origin, batch_id=row.order.batch_id) for row in rows
        ]

    async def delete(self, letter_id: str) -> Response:
        """Delete a dead letter (a line that used up its attempts) from this list. The line stays in the error
        file of its batch.
        """
        if not await self._dead_letters.delete(letter_id):
            raise _dead_letter_not_found(letter_id)
        return json_response(DeletedDeadLetter(id=letter_id))


def _dead_letter_object(found: StoredDeadLetter) -> DeadLetterObject:
    dead_letter = found.dead_letter
    return DeadLetterObject(
        id=dead_letter.id,
        tenant=found.tenant,
        batch_id=found.batch_id,
        custom_id=dead_letter.custom_id,
        model=dead_letter.model,
        attempts=dead_letter.attempts,
        error=DeadLetterError(
            status_code=dead_letter.status, code=dead_letter.code, message=dead_letter.message
        ),
        failed_at=int(dead_letter.failed_at.timestamp()),
        retried_as=found.retry and found.retry.batch_id,
    )


def _optional_text(fields: Mapping[str, object], name: str) -> str | None:
    value = fields.get(name)
    return None if value is None else check_text(value, name)


def _dead_letter_not_found(id: str) -> ApiError:
    return ApiError(404, f"No dead letter found with id '{id}'.", param="id")
