"""GET /v1/batches/{id}/x/results: the results of a batch, also while the batch is running."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from batchwright.api.auth.caller import tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import invalid_value, one_of
from batchwright.api.middleware.head_method import is_head
from batchwright.api.openapi import ResponseSpecs, enum_schema, error_responses, pattern_schema
from batchwright.api.services.batches.control import BatchControl
from batchwright.api.services.live_results.result_stream import JSONL, LiveResults, ResultQuery

_LINES: ResponseSpecs = {
    200: {"description": "The results, one per line", "content": {JSONL: {"schema": {"type": "string"}}}}
}
_STATUSES = {"completed": True, "failed": False}


class ResultRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._settings, self._control = deps.settings, BatchControl(deps)
        self._results = LiveResults(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/batches", tags=["Batches"])
        router.add_api_route(
            "/{batch_id}/x/results",
            self.results,
            response_class=Response,
            responses=_LINES | error_responses(404, 429),
        )
        return router

    async def results(
        self,
        request: Request,
        batch_id: str,
        status: Annotated[
            str,
            Query(description="the lines of the output file or of the error file"),
            enum_schema(*_STATUSES),
        ] = "completed",
        after: Annotated[
            str | None,
            Query(description="id of the line after which to continue"),
            pattern_schema("^batch_req_[0-9a-f]{32}$"),
        ] = None,
        custom_id: Annotated[str | None, Query(description="only lines with this custom id")] = None,
        follow: Annotated[
            str,
            Query(description="continue with new results until the batch has ended"),
            enum_schema("true", "false"),
        ] = "false",
        order: Annotated[
            str,
            Query(description="up to the first line without a result, or all results as they are found"),
            enum_schema("input", "settled"),
        ] = "input",
    ) -> Response:
        """Return results of a batch as JSON lines, even while the batch is running.

        The lines are those of the output file (`status=completed`) or of the error file (`status=failed`).
        By default, the results have the order of the input. They stop before the first input line without a
        result, so the response is the beginning of the final file. With `order=settled`, the response
        contains all results so far. Their order can differ between two requests.
        """
        in_input_order = one_of(order, "order", "input", "settled") == "input"
        if after is not None and not in_input_order:
            message = (
                "Invalid 'after': only results in input order can be continued after a line. Send the "
                "request without 'after', and skip the lines that you have."
            )
            raise invalid_value("after", message)
        row = await self._control.row(tenant_of(request, self._settings), batch_id)
        query = ResultQuery(
            success=_STATUSES[one_of(status, "status", *_STATUSES)],
            after=after,
            custom_id=custom_id,
            follow=one_of(follow, "follow", "true", "false") == "true",
            in_input_order=in_input_order,
        )
        return await self._results.response(request, row, query, without_body=is_head(request))
