"""/v1/x/schedules: schedules that create batches at the times of a cron expression."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from batchwright.api.audit_log.recorder import AuditLog, in_any_state
from batchwright.api.audit_log.targets import NewScheduleTarget, ScheduleTarget
from batchwright.api.auth.caller import caller_of, tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import schedule_not_found
from batchwright.api.openapi import error_responses, limit_schema
from batchwright.api.schemas.json_body import json_body_spec, read_json_object
from batchwright.api.schemas.openai_objects import json_response
from batchwright.api.schemas.schedules import ScheduleBody, ScheduleChanges, parse_schedule
from batchwright.api.services.schedules import Schedules
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.pages import page_of
from batchwright.contracts.api_objects.schedules import DeletedSchedule, ScheduleObject, SchedulePage
from batchwright.database.errors import UnknownCursor
from batchwright.database.tables.schedules import ScheduleRow
from batchwright.rules.ids import is_schedule_id
from batchwright.rules.pagination import page_limit


class ScheduleRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._settings, self._table = deps.settings, deps.database.schedules
        self._schedules, self._audit_log = Schedules(deps), AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/x/schedules", tags=["Schedules"])
        one, missing, of_tenant = "/{schedule_id}", error_responses(404), self._audit_log.of_tenant
        router.add_api_route(
            "",
            self.create,
            methods=["POST"],
            response_model=ScheduleObject,
            openapi_extra=json_body_spec(ScheduleBody),
            responses=error_responses(429),
            dependencies=self._audit_log.of_creation(AuditAction.SCHEDULE_CREATE, NewScheduleTarget),
        )
        router.add_api_route("", self.list, response_model=SchedulePage, responses=missing)
        router.add_api_route(one, self.get, response_model=ScheduleObject, responses=missing)
        router.add_api_route(
            one,
            self.change,
            methods=["PATCH"],
            response_model=ScheduleObject,
            openapi_extra=json_body_spec(ScheduleChanges),
            responses=error_responses(404, 429),
            dependencies=of_tenant(AuditAction.SCHEDULE_CHANGE, ScheduleTarget),
        )
        router.add_api_route(
            one,
            self.delete,
            methods=["DELETE"],
            response_model=DeletedSchedule,
            responses=missing,
            dependencies=of_tenant(AuditAction.SCHEDULE_DELETE, ScheduleTarget, ends=in_any_state),
        )
        for name, endpoint, action in (
            ("pause", self.pause, AuditAction.SCHEDULE_PAUSE),
            ("resume", self.resume, AuditAction.SCHEDULE_RESUME),
            ("trigger", self.trigger, AuditAction.SCHEDULE_TRIGGER),
        ):
            router.add_api_route(
                f"{one}/{name}",
                endpoint,
                methods=["POST"],
                response_model=ScheduleObject,
                responses=error_responses(404, 409, 429),
                dependencies=of_tenant(action, ScheduleTarget),
            )
        return router

    async def create(self, request: Request) -> Response:
        """Create a schedule. Its batches run with the API key that sends this request."""
        fields = parse_schedule(await read_json_object(request), self._settings, is_new=True)
        tenant, caller = tenant_of(request, self._settings), caller_of(request, self._settings)
        id = NewScheduleTarget.new_id(request)
        return json_response(await self._schedules.create(id, fields, tenant, caller))

    async def list(
        self,
        request: Request,
        limit: Annotated[str | None, Query(), limit_schema(20, 100)] = None,
        after: Annotated[str | None, Query(description="a schedule id")] = None,
    ) -> Response:
        """List schedules, newest first."""
        tenant, page_size = tenant_of(request, self._settings), page_limit(limit, default=20, maximum=100)
        if after is not None and not is_schedule_id(after):
            raise schedule_not_found(after)
        try:
            rows, more = await self._table.page(tenant, limit=page_size, after=after)
        except UnknownCursor as error:
            raise schedule_not_found(error.id) from None
        data = await self._schedules.all_shown(rows)
        return json_response(page_of(SchedulePage, data, more=more))

    async def get(self, request: Request, schedule_id: str) -> Response:
        """Retrieve a schedule, with the times of its next runs and with its latest runs. Each run creates one
        batch.
        """
        return json_response(await self._schedules.shown(await self._row(request, schedule_id)))

    async def change(self, request: Request, schedule_id: str) -> Response:
        """Change a schedule. Later batches of the schedule run with the API key that sends this request."""
        row = await self._row(request, schedule_id)
        fields = parse_schedule(await read_json_object(request), self._settings, is_new=False)
        return json_response(await self._schedules.change(row, fields, caller_of(request, self._settings)))

    async def delete(self, request: Request, schedule_id: str) -> Response:
        """Delete a schedule and the list of its runs. Batches that it has created continue to run."""
        row = await self._row(request, schedule_id)
        await self._schedules.delete(row)
        return json_response(DeletedSchedule(id=row.id))

    async def pause(self, request: Request, schedule_id: str) -> Response:
        """Pause a schedule. During the pause, the schedule creates no batches. Missed batches are not created
        later.
        """
        return json_response(await self._schedules.pause(await self._row(request, schedule_id)))

    async def resume(self, request: Request, schedule_id: str) -> Response:
        """Resume a paused schedule."""
        return json_response(await self._schedules.resume(await self._row(request, schedule_id)))

    async def trigger(self, request: Request, schedule_id: str) -> Response:
        """Create a batch of a schedule now, even if the schedule is paused.

        If the previous batch has not ended, the schedule's overlap policy decides what happens.
        """
        return json_response(await self._schedules.trigger(await self._row(request, schedule_id)))

    async def _row(self, request: Request, schedule_id: str) -> ScheduleRow:
        return await self._schedules.row(tenant_of(request, self._settings), schedule_id)
