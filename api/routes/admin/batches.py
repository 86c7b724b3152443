"""/admin/batches: list, count, get, cancel, pause, resume, prioritize and abandon batches of all tenants."""

import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from batchwright.api.audit_log.operator_targets import OperatorBatchTarget
from batchwright.api.audit_log.recorder import AuditLog
from batchwright.api.auth.caller import operator_of
from batchwright.api.batch_rows import BatchRows
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import batch_not_found, conflict, invalid_value, one_of
from batchwright.api.openapi import (
    CUSTOM_ID_SCHEMA,
    enum_schema,
    error_responses,
    limit_schema,
    pattern_schema,
)
from batchwright.api.schemas.batch_create import NO_NUL
from batchwright.api.schemas.json_body import (
    check_text,
    json_body_spec,
    read_json_object,
    reject_unknown,
    required_integer,
)
from batchwright.api.schemas.openai_objects import json_response
from batchwright.api.schemas.shown_forecasts import FORECAST_AGE
from batchwright.api.services.batches.control import BatchControl
from batchwright.api.services.batches.line_search import LineSearch
from batchwright.api.services.batches.slices import BatchSlices
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.operator import (
    BatchCountsObject,
    BatchSlicesObject,
    OperatorBatch,
    OperatorBatchPage,
    TenantBatchCounts,
)
from batchwright.contracts.api_objects.pages import page_of
from batchwright.contracts.temporal_payloads.batch import MAX_PRIORITY, MIN_PRIORITY, WindowFit
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import UnknownCursor
from batchwright.database.records import BatchRow
from batchwright.database.tables.operations.operator_batches import BatchCount, OperatorBatchFilters
from batchwright.rules.batch_filters import custom_id_filter
from batchwright.rules.ids import is_batch_id
from batchwright.rules.pagination import is_ascending, page_limit

logger = logging.getLogger(__name__)
_COUNTED_SINCE = timedelta(days=1)
_LIVE = "live"
_LIVE_STATUSES = tuple(status for status in BatchStatus if not status.is_terminal)
_STATUSES = (_LIVE, *BatchStatus)
_FILTERS = ("tenant", "status", "model", "forecast", "custom_id", "order", "limit", "after")
_TextQuery = Annotated[str | None, Query(), pattern_schema(NO_NUL)]


class PriorityUpdate(BaseModel):
    priority: int = Field(ge=MIN_PRIORITY, le=MAX_PRIORITY, description="the highest is the most urgent")


class OperatorBatchRoutes:
    def __init__(self, deps: ApiDependencies, search: LineSearch) -> None:
        self._clock = deps.clock
        self._batches, self._rows = deps.database.operator_batches, BatchRows(deps)
        self._control, self._slices = BatchControl(deps), BatchSlices(deps)
        self._search = search
        self._audit_log = AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/batches", tags=["Operation"])
        one = "/{batch_id}"
        router.add_api_route(
            "", self.list, response_model=OperatorBatchPage, responses=error_responses(404, 429)
        )
        router.add_api_route("/counts", self.counts, response_model=BatchCountsObject)
        router.add_api_route(one, self.get, response_model=OperatorBatch, responses=error_responses(404))
        router.add_api_route(
            one + "/slices", self.slices, response_model=BatchSlicesObject, responses=error_responses(404)
        )
        for name, endpoint, action, statuses in (
            ("cancel", self.cancel, AuditAction.BATCH_CANCEL, (404, 409)),
            ("pause", self.pause, AuditAction.BATCH_PAUSE, (404, 409, 429)),
            ("resume", self.resume, AuditAction.BATCH_RESUME, (404, 409, 429)),
            ("abandon", self.abandon, AuditAction.BATCH_ABANDON, (404, 409)),
        ):
            router.add_api_route(
                f"{one}/{name}",
                endpoint,
                dependencies=self._audit_log.of_operator(action, OperatorBatchTarget),
                methods=["POST"],
                response_model=OperatorBatch,
                responses=error_responses(*statuses),
            )
        router.add_api_route(
            f"{one}/priority",
            self.prioritize,
            methods=["POST"],
            response_model=OperatorBatch,
            openapi_extra=json_body_spec(PriorityUpdate),
            dependencies=self._audit_log.of_operator(AuditAction.BATCH_PRIORITIZE, OperatorBatchTarget),
            responses=error_responses(404, 409),
        )
        return router

    async def list(
        self,
        request: Request,
        tenant: _TextQuery = None,
        status: Annotated[
            str | None, Query(description="`live` for all that have not ended"), enum_schema(*_STATUSES)
        ] = None,
        model: _TextQuery = None,
        forecast: Annotated[str | None, Query(), enum_schema(*WindowFit)] = None,
        custom_id: Annotated[
            str | None, Query(description="only batches with a line with this custom id"), CUSTOM_ID_SCHEMA
        ] = None,
        order: Annotated[str | None, Query(description="by creation"), enum_schema("asc", "desc")] = None,
        limit: Annotated[str | None, Query(), limit_schema(20, 100)] = None,
        after: Annotated[str | None, Query(description="a batch id")] = None,
    ) -> Response:
        """List batches of all tenants, newest first by default."""
        reject_unknown(request.query_params, _FILTERS)
        page_size, ascending = page_limit(limit, default=20, maximum=100), is_ascending(order)
        for name, text in (("tenant", tenant), ("model", model)):
            if text is not None:
                check_text(text, name)
        sought = custom_id_filter(custom_id)
        if after is not None and not is_batch_id(after):
            raise batch_not_found(after)
        filters = OperatorBatchFilters(
            forecast_since=self._clock() - FORECAST_AGE,
            tenant=tenant,
            statuses=None if status is None else _parse_status(status),
            model=model,
            forecast=None if forecast is None else WindowFit(one_of(forecast, "forecast", *WindowFit)),
        )
        try:
            if sought is not None:
                found = await self._search.all_batches(
                    sought, filters, limit=page_size, ascending=ascending, after=after
                )
                data, last = await self._page(found.rows), found.last_id
                return json_response(page_of(OperatorBatchPage, data, more=last is not None, last_id=last))
            rows, more = await self._batches.page(filters, limit=page_size, ascending=ascending, after=after)
        except UnknownCursor as error:
            raise batch_not_found(error.id) from None
        return json_response(page_of(OperatorBatchPage, await self._page(rows), more=more))

    async def counts(self) -> Response:
        """Count batches by status and tenant: all live batches, and those that ended in the last 24 hours."""
        now = self._clock()
        since = now - _COUNTED_SINCE
        rows = await self._batches.counts(forecast_since=now - FORECAST_AGE, ended_since=since)
        return json_response(_batch_counts(rows, since))

    async def get(self, batch_id: str) -> Response:
        """Retrieve a batch of any tenant."""
        tenant = await self._owner(batch_id)
        return json_response(_operator_batch(await self._control.get(tenant, batch_id), tenant))

    async def slices(self, batch_id: str) -> Response:
        """Show the scheduled slices of a batch that have not ended. A slice contains lines of one model. One
        worker at a time sends the lines of a slice.

        For each slice, the response shows the state, the time when this state began, the worker, and the
        reason why the last attempt ended. The response also shows other steps of the batch that have not
        ended (`ingest`, `finalize` or `end`).
        """
        row = await self._control.row(await self._owner(batch_id), batch_id)
        return json_response(await self._slices.read(row))

    async def cancel(self, request: Request, batch_id: str) -> Response:
        """Cancel a batch of any tenant. Its files contain the results that exist by then."""
        return await self._perform(request, batch_id, "cancelled", self._control.cancel)

    async def pause(self, request: Request, batch_id: str) -> Response:
        """Stop sending the requests of a batch. The pause does not extend the batch's completion window."""
        return await self._perform(request, batch_id, "paused", self._control.pause)

    async def resume(self, request: Request, batch_id: str) -> Response:
        """Resume a paused batch. If the batch has ended, only its tenant can resume it."""
        return await self._perform(request, batch_id, "resumed", self._control.resume_paused)

    async def abandon(self, request: Request, batch_id: str) -> Response:
        """End a batch whose result files cannot be written. The results are not deleted, so the tenant can
        resume the batch.
        """
        return await self._perform(request, batch_id, "abandoned", self._control.abandon)

    async def prioritize(self, request: Request, batch_id: str) -> Response:
        """Change the priority of a live batch relative to other batches of its tenant.

        Workers apply the change within seconds.
        """
        tenant = await self._owner(batch_id)
        fields = await read_json_object(request)
        reject_unknown(fields, PriorityUpdate.model_fields)
        priority = required_integer(fields, "priority")
        if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
            message = f"expected {MIN_PRIORITY} to {MAX_PRIORITY}, the most urgent, but got {priority}."
            raise invalid_value("priority", f"Invalid value for 'priority': {message}")
        before = await self._batches.set_priority(tenant, batch_id, priority)
        batch = await self._control.get(tenant, batch_id)
        if before is None:
            raise conflict(f"Cannot change the priority of a batch with status '{batch.status}'.")
        extra = {"batch_id": batch_id, "of_tenant": tenant, "operator": operator_of(request)}
        change = {"before": before, "priority": priority}
        logger.info("batch priority changed by an operator", extra=extra | change)
        return json_response(_operator_batch(batch, tenant))

    async def _perform(
        self,
        request: Request,
        batch_id: str,
        done: str,
        action: Callable[[str, str], Awaitable[BatchObject]],
    ) -> Response:
        """Change a batch with `action`, log which operator did it, and return the response.

        Args:
            done: past tense of the change, for the log, such as "paused".
            action: function that gets the tenant and the batch id, changes the batch and returns it.
        """
        tenant = await self._owner(batch_id)
        batch = await action(tenant, batch_id)
        extra = {"batch_id": batch_id, "of_tenant": tenant, "operator": operator_of(request)}
        logger.info(f"batch {done} by an operator", extra=extra)
        return json_response(_operator_batch(batch, tenant))

    async def _page(self, rows: Sequence[BatchRow]) -> Sequence[OperatorBatch]:
        batches = await self._control.page(rows)
        return [_operator_batch(batch, row.order.tenant) for batch, row in zip(batches, rows, strict=True)]

    async def _owner(self, batch_id: str) -> str:
        tenant = await self._rows.owner(batch_id)
        if tenant is None:
            raise batch_not_found(batch_id)
        return tenant


def _parse_status(text: str) -> Collection[BatchStatus]:
    status = one_of(text, "status", *_STATUSES)
    return _LIVE_STATUSES if status == _LIVE else [BatchStatus(status)]


def _operator_batch(batch: BatchObject, tenant: str) -> OperatorBatch:
    return OperatorBatch(**dict(batch), tenant=tenant)


def _batch_counts(counts: Sequence[BatchCount], ended_since: datetime) -> BatchCountsObject:
    by_tenant: defaultdict[str, list[BatchCount]] = defaultdict(list)
    for count in counts:
        by_tenant[count.tenant].append(count)
    total = _of_tenant("", counts)
    return BatchCountsObject(
        statuses=total.statuses,
        oldest_created_at=total.oldest_created_at,
        at_risk=total.at_risk,
        late=total.late,
        ended_since=int(ended_since.timestamp()),
        tenants=[_of_tenant(name, by_tenant[name]) for name in sorted(by_tenant)],
    )


def _of_tenant(tenant: str, counts: Sequence[BatchCount]) -> TenantBatchCounts:
    statuses: Counter[BatchStatus] = Counter()
    for count in counts:
        statuses[count.status] += count.batches
    oldest = min((count.oldest for count in counts if count.oldest is not None), default=None)
    return TenantBatchCounts(
        tenant=tenant,
        statuses={status: statuses[status] for status in BatchStatus if statuses[status]},
        oldest_created_at=None if oldest is None else int(oldest.timestamp()),
        at_risk=sum(count.at_risk for count in counts),
        late=sum(count.late for count in counts),
    )
