"""/v1/batches: create, list, get, cancel and delete batches, and extensions such as pause and retry."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from batchwright.api.audit_log.recorder import AuditLog, in_any_state, is_live
from batchwright.api.audit_log.targets import BatchTarget
from batchwright.api.auth.caller import caller_of, key_id_of, tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import RETRY_AFTER_SECONDS, ApiError, batch_not_found, missing_parameter, one_of
from batchwright.api.openapi import CUSTOM_ID_SCHEMA, TIME_SCHEMA, enum_schema, error_responses, limit_schema
from batchwright.api.schemas.batch_create import (
    EstimateBody,
    MaxCostBody,
    batch_body_spec,
    parse_batch_create,
    parse_max_cost,
)
from batchwright.api.schemas.batch_rerun import RerunBody, RetryBody
from batchwright.api.schemas.json_body import (
    json_body_spec,
    optional_body_spec,
    read_json_object,
    read_optional_object,
    reject_unknown,
)
from batchwright.api.schemas.openai_objects import batch_object, json_response
from batchwright.api.services.batches.control import BatchControl
from batchwright.api.services.batches.cost_estimate_runner import EstimateRunner
from batchwright.api.services.batches.creation import BatchCreator
from batchwright.api.services.batches.deletion import BatchDeletion
from batchwright.api.services.batches.line_search import LineSearch
from batchwright.api.services.batches.rerun import BatchReruns
from batchwright.api.services.idempotency import (
    fingerprint,
    idempotency_key_of,
    idempotency_key_parameter,
)
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.estimates import EstimateObject
from batchwright.contracts.api_objects.openai import (
    BatchObject,
    BatchPage,
    DeletedBatch,
    ThroughputObject,
    ThroughputSample,
)
from batchwright.contracts.api_objects.pages import page_of
from batchwright.contracts.temporal_payloads.batch import BatchState
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import UnknownCursor
from batchwright.database.records import BatchRow
from batchwright.rules.batch_filters import (
    MAX_METADATA_PAIRS,
    BatchFilters,
    custom_id_filter,
    metadata_filter,
    status_filter,
    time_filter,
)
from batchwright.rules.ids import is_batch_id
from batchwright.rules.pagination import page_limit

METADATA_PARAMETER: dict[str, object] = {
    "parameters": [
        {
            "name": "metadata",
            "in": "query",
            "required": False,
            "style": "deepObject",
            "explode": True,
            "description": "only batches whose metadata has this pair: `metadata[key]=value`, repeatable "
            f"with other keys, up to {MAX_METADATA_PAIRS} pairs",
            "schema": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "maxProperties": MAX_METADATA_PAIRS,
            },
        }
    ]
}


class BatchRoutes:
    def __init__(self, deps: ApiDependencies, search: LineSearch) -> None:
        self._deps = deps
        self._batch_list = deps.database.batch_list
        self._temporal = deps.temporal
        self._creator = BatchCreator(deps)
        self._reruns, self._estimates = BatchReruns(deps), EstimateRunner(deps)
        self._control, self._deletion = BatchControl(deps), BatchDeletion(deps)
        self._search = search
        self._audit_log = AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/batches", tags=["Batches"])
        one = "/{batch_id}"
        router.add_api_route(
            "",
            self.create,
            methods=["POST"],
            response_model=BatchObject,
            openapi_extra=batch_body_spec(self._deps.settings.profile),
            responses=error_responses(403, 409),
            dependencies=[Depends(idempotency_key_parameter)],
        )
        router.add_api_route(
            "",
            self.list,
            response_model=BatchPage,
            openapi_extra=METADATA_PARAMETER,
            responses=error_responses(404, 429),
        )
        router.add_api_route(
            "/x/estimate",
            self.estimate,
            methods=["POST"],
            response_model=EstimateObject,
            openapi_extra=json_body_spec(EstimateBody),
            responses=error_responses(403, 404, 409, 413, 429),
        )
        router.add_api_route(one, self.get, response_model=BatchObject, responses=error_responses(404))
        router.add_api_route(
            one,
            self.delete,
            methods=["DELETE"],
            response_model=DeletedBatch,
            responses=error_responses(404, 409),
            dependencies=self._audit_log.of_tenant(AuditAction.BATCH_DELETE, BatchTarget, ends=in_any_state),
        )
        self._add_control_routes(router)
        router.add_api_route(
            one + "/x/state", self.state, response_model=BatchState, responses=error_responses(404)
        )
        router.add_api_route(
            one + "/x/throughput",
            self.throughput,
            response_model=ThroughputObject,
            responses=error_responses(404),
        )
        return router

    def _add_control_routes(self, router: APIRouter) -> None:
        """Add the routes that cancel, pause, resume or retry a batch, or change its maximum cost."""
        one = "/{batch_id}"
        resume, retry = optional_body_spec(RerunBody), optional_body_spec(RetryBody)
        router.add_api_route(
            f"{one}/cancel",
            self.cancel,
            methods=["POST"],
            response_model=BatchObject,
            responses=error_responses(404, 409),
            dependencies=self._audit_log.of_tenant(AuditAction.BATCH_CANCEL, BatchTarget, ends=is_live),
        )
        router.add_api_route(
            f"{one}/x/pause",
            self.pause,
            methods=["POST"],
            response_model=BatchObject,
            responses=error_responses(404, 409, 429),
        )
        for name, endpoint, body in (("x/resume", self.resume, resume), ("x/retry", self.retry, retry)):
            router.add_api_route(
                f"{one}/{name}",
                endpoint,
                methods=["POST"],
                response_model=BatchObject,
                openapi_extra=body,
                responses=error_responses(404, 409, 429),
            )
        router.add_api_route(
            one + "/x/max_cost",
            self.change_max_cost,
            methods=["POST"],
            response_model=BatchObject,
            openapi_extra=json_body_spec(MaxCostBody),
            responses=error_responses(404, 409, 429),
            dependencies=self._audit_log.of_tenant(AuditAction.BATCH_LIMIT_COST, BatchTarget),
        )

    async def create(self, request: Request) -> Response:
        """Create a batch. If the input file does not exist, this call still succeeds, but the batch fails."""
        settings = self._deps.settings
        tenant, key = tenant_of(request, settings), idempotency_key_of(request)
        fields = await read_json_object(request)
        creation = parse_batch_create(fields, settings).by(caller_of(request, settings))
        if key is None:
            created = await self._creator.create(creation, tenant)
        else:
            created = await self._creator.create_once(creation, tenant, key, fingerprint(fields))
        return json_response(batch_object(created.row, webhook=created.webhook))

    async def list(
        self,
        request: Request,
        limit: Annotated[str | None, Query(), limit_schema(20, 100)] = None,
        after: Annotated[str | None, Query(description="a batch id")] = None,
        status: Annotated[
            str | None, Query(description="only batches with this status"), enum_schema(*BatchStatus)
        ] = None,
        model: Annotated[str | None, Query(description="only batches with lines of this model")] = None,
        created_after: Annotated[
            str | None, Query(description="Unix time; only batches of this time or later"), TIME_SCHEMA
        ] = None,
        created_before: Annotated[
            str | None, Query(description="Unix time; only batches before this time"), TIME_SCHEMA
        ] = None,
        custom_id: Annotated[
            str | None, Query(description="only batches with a line with this custom id"), CUSTOM_ID_SCHEMA
        ] = None,
    ) -> Response:
        """List batches, newest first. If there are several filters, a batch must meet all of them."""
        tenant = tenant_of(request, self._deps.settings)
        page_size = page_limit(limit, default=20, maximum=100)
        filters = BatchFilters(
            status=status_filter(status),
            model=model,
            created_after=time_filter(created_after, "created_after"),
            created_before=time_filter(created_before, "created_before"),
            metadata=metadata_filter(request.query_params.multi_items()),
        )
        sought = custom_id_filter(custom_id)
        if after is not None and not is_batch_id(after):
            raise batch_not_found(after)
        try:
            if sought is not None:
                found = await self._search.batches(
                    tenant, sought, limit=page_size, after=after, filters=filters
                )
                data, last = await self._control.page(found.rows), found.last_id
                return json_response(page_of(BatchPage, data, more=last is not None, last_id=last))
            rows, more = await self._batch_list.page(tenant, limit=page_size, after=after, filters=filters)
        except UnknownCursor as error:
            raise batch_not_found(error.id) from None
        return json_response(page_of(BatchPage, await self._control.page(rows), more=more))

    async def estimate(self, request: Request) -> Response:
        """Estimate the lines, the tokens and the cost of a batch, without creating it."""
        tenant = tenant_of(request, self._deps.settings)
        return json_response(await self._estimates.estimate(tenant, await read_json_object(request)))

    async def get(self, request: Request, batch_id: str) -> Response:
        """Retrieve a batch."""
        tenant = tenant_of(request, self._deps.settings)
        return json_response(await self._control.get(tenant, batch_id))

    async def cancel(self, request: Request, batch_id: str) -> Response:
        """Cancel a batch. The results that exist by then are written to its files."""
        tenant = tenant_of(request, self._deps.settings)
        return json_response(await self._control.cancel(tenant, batch_id))

    async def delete(
        self,
        request: Request,
        batch_id: str,
        keep_files: Annotated[
            str,
            Query(description="keep the output and error files"),
            enum_schema("true", "false"),
        ] = "false",
    ) -> Response:
        """Delete a batch that has ended, with its output file, its error file and its dead letters. The input
        file stays.
        """
        reject_unknown(request.query_params, ("keep_files",))
        tenant = tenant_of(request, self._deps.settings)
        keep = one_of(keep_files, "keep_files", "true", "false") == "true"
        deleted = await self._deletion.delete(tenant, batch_id, key_id_of(request), keep_files=keep)
        return json_response(deleted)

    async def pause(self, request: Request, batch_id: str) -> Response:
        """Stop sending the requests of a batch. The pause does not extend the batch's completion window."""
        tenant = tenant_of(request, self._deps.settings)
        return json_response(await self._control.pause(tenant, batch_id))

    async def resume(self, request: Request, batch_id: str) -> Response:
        """Resume a paused batch.

        If the batch has ended, create a new batch instead. The new batch sends the lines that have no result.
        """
        row = await self._row(request, batch_id)
        if not row.status.is_terminal:
            return json_response(await self._control.resume_paused(row.order.tenant, batch_id))
        fields = await read_optional_object(request)
        return json_response(batch_object(await self._reruns.resume(row, fields, key_id_of(request))))

    async def retry(self, request: Request, batch_id: str) -> Response:
        """Create a new batch that sends the failed lines of an ended batch again."""
        row = await self._row(request, batch_id)
        fields = await read_optional_object(request)
        return json_response(batch_object(await self._reruns.retry(row, fields, key_id_of(request))))

    async def change_max_cost(self, request: Request, batch_id: str) -> Response:
        """Change the maximum cost of a batch in progress. Workers apply the change within seconds."""
        tenant = tenant_of(request, self._deps.settings)
        fields = await read_json_object(request)
        reject_unknown(fields, MaxCostBody.model_fields)
        if "max_cost" not in fields:
            raise missing_parameter("max_cost")
        max_cost = parse_max_cost(fields["max_cost"], "max_cost")
        return json_response(await self._control.change_max_cost(tenant, batch_id, max_cost))

    async def state(self, request: Request, batch_id: str) -> Response:
        """Show the state that the batch's workflow reports. The state says, for example, if the batch is
        paused, how many slices (parts of the lines) of each model are done, and why lines wait.
        """
        await self._row(request, batch_id)
        state = await self._temporal.state(batch_id)
        if state is None:
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            raise ApiError(503, "No worker answers for this batch now.", headers=headers)
        return json_response(state)

    async def throughput(self, request: Request, batch_id: str) -> Response:
        """Show how the number of lines with a final result has grown since the start of the batch."""
        order = (await self._row(request, batch_id)).order
        samples = await self._deps.database.progress.samples(order.tenant, batch_id)
        data = [ThroughputSample(at=int(each.at.timestamp()), lines=each.settled) for each in samples]
        return json_response(ThroughputObject(data=data))

    async def _row(self, request: Request, batch_id: str) -> BatchRow:
        return await self._control.row(tenant_of(request, self._deps.settings), batch_id)
