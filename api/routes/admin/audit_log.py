"""/admin/audit-log: list and export the audit log (who changed or destroyed what), for operators."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import StreamingResponse

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, one_of
from batchwright.api.middleware.head_method import is_head
from batchwright.api.middleware.query_parameters import WARNING_HEADER
from batchwright.api.openapi import (
    TIME_SCHEMA,
    ResponseSpecs,
    enum_schema,
    error_responses,
    limit_schema,
    pattern_schema,
)
from batchwright.api.schemas.batch_create import NO_NUL
from batchwright.api.schemas.json_body import check_text, reject_unknown
from batchwright.api.schemas.openai_objects import json_response
from batchwright.contracts.api_objects.audit_log import (
    AuditAction,
    AuditActorObject,
    AuditEntryObject,
    AuditLogPage,
    AuditOutcome,
    AuditTargetObject,
)
from batchwright.contracts.api_objects.pages import page_of
from batchwright.database.tables.operations.audit_log import AuditFilters, AuditLogExtent, RecordedAction
from batchwright.rules.batch_filters import time_filter
from batchwright.rules.ids import audit_entry_position, is_audit_entry_id
from batchwright.rules.pagination import is_ascending, page_limit

_JSON_LINES = "application/jsonl"
_LINES: ResponseSpecs = {
    200: {"description": "One action per line", "content": {_JSON_LINES: {"schema": {"type": "string"}}}}
}
_EXPORT_PAGE = (
    100  # entries in memory; most have less than a kilobyte, and none has more than a few megabytes
)
# An action without an outcome is taken to be running for this long, and a repair for a day longer. Then its
# process must have ended.
_MAX_RUNNING = timedelta(minutes=10)
_FILTERS = ("action", "actor", "target", "tenant", "outcome", "created_after", "created_before", "after")
_After = Annotated[str | None, Query(description="id of an entry, which may be deleted")]


async def _filters(
    action: Annotated[str | None, Query(), enum_schema(*AuditAction)] = None,
    actor: Annotated[
        str | None, Query(description="key id, user or tenant of the actor"), pattern_schema(NO_NUL)
    ] = None,
    target: Annotated[str | None, Query(description="id of the target"), pattern_schema(NO_NUL)] = None,
    tenant: Annotated[
        str | None, Query(description="tenant to which the target belongs"), pattern_schema(NO_NUL)
    ] = None,
    outcome: Annotated[str | None, Query(), enum_schema(*AuditOutcome)] = None,
    created_after: Annotated[
        str | None, Query(description="the earliest time, Unix seconds"), TIME_SCHEMA
    ] = None,
    created_before: Annotated[
        str | None, Query(description="only earlier ones, Unix seconds"), TIME_SCHEMA
    ] = None,
) -> AuditFilters:
    """Return the filters of a list or an export, from its query parameters.

    Raises:
        ApiError: the value of a parameter is not valid (400).
    """
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


_Filters = Annotated[AuditFilters, Depends(_filters)]


class AuditLogRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._table, self._clock = deps.database.audit_log, deps.clock

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
        filters: _Filters,
        order: Annotated[
            str | None, Query(description="as they were recorded"), enum_schema("asc", "desc")
        ] = None,
        limit: Annotated[str | None, Query(), limit_schema(20, 100)] = None,
        after: _After = None,
    ) -> Response:
        """List the entries of the audit log, newest first by default."""
        reject_unknown(request.query_params, (*_FILTERS, "order", "limit"))
        page_size, ascending = page_limit(limit, default=20, maximum=100), is_ascending(order)
        if after is not None:
            await self._extent(after)
        above, below = (after, None) if ascending else (None, after)
        actions, more = await self._table.page(
            filters, limit=page_size, ascending=ascending, above=above, below=below
        )
        data = [_entry_object(action) for action in actions]
        return json_response(page_of(AuditLogPage, data, more=more))

    async def export(self, request: Request, filters: _Filters, after: _After = None) -> Response:
        """Export the audit log as JSON lines, oldest first. With `after`, continue an earlier export.

        The export ends before the first action that may still be running. An action may still be running if
        it has no outcome and began in the last ten minutes. If the action is `consistency.repair`, this time
        is one day longer.

        Batchwright deletes old entries after a time. If entries that follow `after` were deleted, the header
        `X-Batchwright-Warning` says how many.
        """
        reject_unknown(request.query_params, _FILTERS)
        extent = await self._extent(after)
        headers: dict[str, str] = {}
        if after is not None and (deleted := extent.deleted_after(audit_entry_position(after))):
            headers[WARNING_HEADER] = f"Retention has deleted entries after {after}: {deleted} are missing"
        if is_head(request):
            return Response(media_type=_JSON_LINES, headers=headers)
        lines = self._lines(filters, after, extent.ended_below)
        return StreamingResponse(lines, media_type=_JSON_LINES, headers=headers)

    async def _lines(self, filters: AuditFilters, above: str | None, below: str) -> AsyncGenerator[bytes]:
        """Yield the entries as JSON lines, by ascending id. Many lines are joined into each yielded value.

        Args:
            filters: conditions that an entry must meet.
            above: yield only entries with greater ids; None to begin with the first entry.
            below: yield only entries with smaller ids.
        """
        more = True
        while more:
            actions, more = await self._table.page(
                filters, limit=_EXPORT_PAGE, ascending=True, above=above, below=below
            )
            if actions:
                lines = (_entry_object(action).model_dump_json() + "\n" for action in actions)
                yield "".join(lines).encode()
                above = actions[-1].id

    async def _extent(self, after: str | None) -> AuditLogExtent:
        """Check the parameter `after`. Return the positions of the oldest and the newest entry of the audit
        log, and the id up to which all actions have ended.

        Args:
            after: id of the entry after which a list or an export begins; None to begin with the first entry.

        Raises:
            ApiError: no entry with the id `after` ever existed, or the database was restored from a backup
                without this entry (404).
        """
        if after is not None and not is_audit_entry_id(after):
            raise _entry_not_found(after)
        extent = await self._table.extent(self._clock() - _MAX_RUNNING)
        if after is not None:
            position = audit_entry_position(after)
            if position > extent.latest or await self._table.id_at(position) not in (None, after):
                raise _entry_not_found(after)
        return extent


def _entry_object(action: RecordedAction) -> AuditEntryObject:
    id, entry, result = action
    actor, target = entry.actor, entry.target
    return AuditEntryObject(
        id=id,
        created_at=int(entry.created_at.timestamp()),
        source=actor.source,
        actor=AuditActorObject(
            tenant=actor.tenant or None,
            key_id=actor.key_id or None,
            user=actor.user or None,
            address=actor.address or None,
        ),
        request_id=actor.request_id or None,
        action=entry.action,
        target=AuditTargetObject(type=target.type, id=target.id or None, tenant=target.tenant or None),
        before=entry.before,
        after=result.after,
        outcome=result.outcome,
        code=result.code or None,
    )


def _entry_not_found(id: str) -> ApiError:
    message = (
        f"No entry of the audit log found with id '{id}'. If the database was restored from a backup, the "
        "entry is lost and its number is used again: export the log from its beginning."
    )
    return ApiError(404, message, param="after")
