"""/admin/audit-log: list and export who changed or destroyed what, for operators."""

from collections.abc import AsyncGenerator, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, one_of
from batchwright.api.middleware.head_method import is_head
from batchwright.api.openapi import (
    TIME_SCHEMA,
    ResponseSpecs,
    enum_schema,
    error_responses,
    limit_schema,
    pattern_schema,
)
from batchwright.api.schemas.audit_log import audit_entry_object, audit_log_page
from batchwright.api.schemas.batch_create import NO_NUL
from batchwright.api.schemas.json_body import check_text, reject_unknown
from batchwright.api.schemas.responses import json_response
from batchwright.contracts.audit_log import AuditAction, AuditLogPage, AuditOutcome
from batchwright.database.errors import UnknownCursor
from batchwright.database.tables.audit_log import AuditFilters, RecordedAct
from batchwright.rules.batch_filters import time_filter
from batchwright.rules.ids import is_audit_entry_id
from batchwright.rules.pagination import is_ascending, page_limit

_JSON_LINES = "application/jsonl"
_LINES: ResponseSpecs = {
    200: {"description": "One act per line", "content": {_JSON_LINES: {"schema": {"type": "string"}}}}
}
_EXPORT_PAGE = (
    100  # entries in memory; most have less than a kilobyte, and none has more than a few megabytes
)
_FILTERS = ("action", "actor", "target", "tenant", "outcome", "created_after", "created_before", "after")
_Action = Annotated[str | None, Query(), enum_schema(*AuditAction)]
_Actor = Annotated[
    str | None, Query(description="key id, user or tenant of the actor"), pattern_schema(NO_NUL)
]
_Target = Annotated[str | None, Query(description="id of the target"), pattern_schema(NO_NUL)]
_Tenant = Annotated[
    str | None, Query(description="tenant to which the target belongs"), pattern_schema(NO_NUL)
]
_Outcome = Annotated[str | None, Query(), enum_schema(*AuditOutcome)]
_From = Annotated[str | None, Query(description="the earliest time, Unix seconds"), TIME_SCHEMA]
_Before = Annotated[str | None, Query(description="only earlier ones, Unix seconds"), TIME_SCHEMA]
_After = Annotated[str | None, Query(description="id of an entry")]


class AuditLogRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._table = deps.database.audit_log

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/audit-log", tags=["Operation"])
        router.add_api_route("", self.list, response_model=AuditLogPage, responses=error_responses(404))
        router.add_api_route(
            "/export", self.export, response_class=Response, responses=_LINES | error_responses(404)
        )
        return router

    async def list(
        self,
        request: Request,
        action: _Action = None,
        actor: _Actor = None,
        target: _Target = None,
        tenant: _Tenant = None,
        outcome: _Outcome = None,
        created_after: _From = None,
        created_before: _Before = None,
        order: Annotated[str | None, Query(description="by time"), enum_schema("asc", "desc")] = None,
        limit: Annotated[str | None, Query(), limit_schema(20, 100)] = None,
        after: _After = None,
    ) -> Response:
        """List recorded acts, newest first."""
        reject_unknown(request.query_params, (*_FILTERS, "order", "limit"))
        most, ascending = page_limit(limit, default=20, most=100), is_ascending(order)
        filters = _filters(action, actor, target, tenant, outcome, created_after, created_before)
        acts, more = await self._page(filters, most, ascending=ascending, after=after)
        return json_response(audit_log_page(acts, more=more))

    async def export(
        self,
        request: Request,
        action: _Action = None,
        actor: _Actor = None,
        target: _Target = None,
        tenant: _Tenant = None,
        outcome: _Outcome = None,
        created_after: _From = None,
        created_before: _Before = None,
        after: _After = None,
    ) -> Response:
        """Export all recorded acts as JSON lines, oldest first. With `after`, continue an earlier export."""
        reject_unknown(request.query_params, _FILTERS)
        filters = _filters(action, actor, target, tenant, outcome, created_after, created_before)
        first, more = await self._page(filters, _EXPORT_PAGE, ascending=True, after=after)
        if is_head(request):
            return Response(media_type=_JSON_LINES)
        return StreamingResponse(self._lines(filters, first, more), media_type=_JSON_LINES)

    async def _lines(
        self, filters: AuditFilters, acts: Sequence[RecordedAct], more: bool
    ) -> AsyncGenerator[bytes]:
        """Yield entries as JSON lines: first those of the page `acts`, then those of the next pages."""
        while acts:
            lines = (audit_entry_object(act).model_dump_json() + "\n" for act in acts)
            yield "".join(lines).encode()
            if not more:
                return
            acts, more = await self._page(filters, _EXPORT_PAGE, ascending=True, after=acts[-1].entry.id)

    async def _page(
        self, filters: AuditFilters, limit: int, *, ascending: bool, after: str | None
    ) -> tuple[Sequence[RecordedAct], bool]:
        if after is not None and not is_audit_entry_id(after):
            raise _entry_not_found(after)
        try:
            return await self._table.page(filters, limit=limit, ascending=ascending, after=after)
        except UnknownCursor as error:
            raise _entry_not_found(error.id) from None


def _filters(
    action: str | None,
    actor: str | None,
    target: str | None,
    tenant: str | None,
    outcome: str | None,
    created_after: str | None,
    created_before: str | None,
) -> AuditFilters:
    for name, text in (("actor", actor), ("target", target), ("tenant", tenant)):
        if text is not None:
            check_text(text, name)
    return AuditFilters(
        action=None if action is None else AuditAction(one_of(action, "action", *AuditAction)),
        actor=actor,
        target=target,
        tenant=tenant,
        outcome=None if outcome is None else AuditOutcome(one_of(outcome, "outcome", *AuditOutcome)),
        created_after=time_filter(created_after, "created_after"),
        created_before=time_filter(created_before, "created_before"),
    )


def _entry_not_found(id: str) -> ApiError:
    return ApiError(404, f"No entry of the audit log found with id '{id}'.", param="after")
