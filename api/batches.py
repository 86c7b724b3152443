"""/v1/batches: create, list, get, cancel; and beside the contract pause, resume, retry, state."""

import asyncio
import logging
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from api.allowance import Allowance
from api.bodies import optional_body, read_object, read_optional
from api.callers import caller_of
from api.chances import SecondChances
from api.creation import ChanceBody, Creation, body_of, make_order, read_creation
from api.errors import RETRY_AFTER_SECONDS, ApiError, conflict, invalid_value, no_batch
from api.idempotency import Keys, fingerprint, key_of, keyed
from api.objects import BatchObject, BatchPage, answer, batch_object, batch_page
from api.parameters import limit_schema
from api.responses import errors
from api.services import Services
from api.temporal_gateway import RunMissing
from api.tenants import key_id_of, tenant_of
from api.waiting import PAUSED, Reasons
from batchwright.contracts.batch import BatchOrder, BatchState
from batchwright.contracts.openai import BatchStatus
from batchwright.database.errors import DatabaseUnavailable, UnknownCursor
from batchwright.database.rows import BatchRow
from batchwright.rules import states
from batchwright.rules.ids import is_batch_id, is_file_id
from batchwright.rules.paging import page_limit
from batchwright.rules.states import Cancel
from batchwright.temporal.errors import TemporalUnavailable

logger = logging.getLogger(__name__)


class BatchRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._batches = services.database.batches
        self._temporal = services.temporal
        self._chances = SecondChances(services, self)
        self._reasons = Reasons(services)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/batches", tags=["Batches"])
        one = "/{batch_id}"
        router.add_api_route(
            "",
            self.create,
            methods=["POST"],
            response_model=BatchObject,
            openapi_extra=body_of(self._services.settings.profile),
            responses=errors(409),
            dependencies=[Depends(keyed)],
        )
        router.add_api_route("", self.list, response_model=BatchPage, responses=errors(404))
        router.add_api_route(one, self.get, response_model=BatchObject, responses=errors(404))
        chance = optional_body(ChanceBody)
        steering = {"cancel": self.cancel, "x/pause": self.pause}
        for name, endpoint in steering.items():
            router.add_api_route(
                f"{one}/{name}",
                endpoint,
                methods=["POST"],
                response_model=BatchObject,
                responses=errors(404, 409),
            )
        for name, endpoint in {"x/resume": self.resume, "x/retry": self.retry}.items():
            router.add_api_route(
                f"{one}/{name}",
                endpoint,
                methods=["POST"],
                response_model=BatchObject,
                openapi_extra=chance,
                responses=errors(404, 409, 429),
            )
        router.add_api_route(one + "/x/state", self.state, response_model=BatchState, responses=errors(404))
        return router

    async def create(self, request: Request) -> Response:
        """Create a batch. An input file that does not exist fails the batch, not this call."""
        settings = self._services.settings
        tenant, key = tenant_of(request, settings), key_of(request)
        fields = await read_object(request)
        creation = read_creation(fields, settings)._replace(caller=caller_of(request, settings))
        if key is None:
            order = await self._order(creation, tenant)
            return answer(batch_object(await self.begin(order)))
        order = await self._first_order(creation, tenant, key, fingerprint(fields))
        if await self._batches.get(tenant, order.batch_id) is None:
            await self.begin(order)
        return answer(batch_object(BatchRow(order=order, status=BatchStatus.VALIDATING)))

    async def list(
        self,
        request: Request,
        limit: Annotated[str | None, Query(), limit_schema(20, 100)] = None,
        after: Annotated[str | None, Query(description="a batch id")] = None,
    ) -> Response:
        """List batches, newest first."""
        tenant = tenant_of(request, self._services.settings)
        most = page_limit(limit, default=20, most=100)
        if after is not None and not is_batch_id(after):
            raise no_batch(after)
        try:
            rows, more = await self._batches.page(tenant, limit=most, after=after)
        except UnknownCursor as error:
            raise no_batch(error.id) from None
        return answer(batch_page(rows, more=more))

    async def get(self, request: Request, batch_id: str) -> Response:
        """Retrieve a batch."""
        tenant = tenant_of(request, self._services.settings)
        if not is_batch_id(batch_id):
            raise no_batch(batch_id)
        read = self._batches.get_waiting(tenant, batch_id, self._services.clock())
        found, served = await asyncio.gather(read, self._reasons.served(), return_exceptions=True)
        if isinstance(found, BaseException):
            raise found
        if found is None:
            raise no_batch(batch_id)
        row, told = found
        if row.status.is_terminal:
            return answer(batch_object(row))
        if isinstance(served, BaseException):
            raise served
        waiting = self._reasons.of(row, told, served)
        paused = any(each.model is None and each.reason == PAUSED for each in waiting)
        return answer(batch_object(row, paused=paused, waiting=waiting))

    async def cancel(self, request: Request, batch_id: str) -> Response:
        """Cancel a batch; what is settled stays in its files."""
        row = await self._row(request, batch_id)
        if self._cancels(row):
            try:
                await self._temporal.cancel(batch_id)
            except RunMissing:  # it may have ended since the row was read
                self._refuse_live(row := await self._row(request, batch_id))
            else:
                noted = await self._batches.note_cancel(row.order.tenant, batch_id, self._services.clock())
                row = noted or row
            self._cancels(row)
        return answer(batch_object(row))

    async def pause(self, request: Request, batch_id: str) -> Response:
        """Stop sending the batch's requests; its window goes on running."""
        row = await self._steerable(request, batch_id, "pause")
        await self._temporal.pause(batch_id)
        await self._reasons.paused(row)
        return answer(batch_object(row, paused=True))

    async def resume(self, request: Request, batch_id: str) -> Response:
        """Send the requests of a paused batch again; of an ended one, make a batch of what is not settled."""
        row = await self._row(request, batch_id)
        if row.status.is_terminal:
            fields = await read_optional(request)
            return answer(batch_object(await self._chances.resume(row, fields, key_id_of(request))))
        self._check_steerable(row, "resume")
        await self._temporal.resume(batch_id)
        await self._reasons.resumed(row)
        return answer(batch_object(row, paused=False))

    async def retry(self, request: Request, batch_id: str) -> Response:
        """Make a batch of an ended one's lines that failed."""
        row = await self._row(request, batch_id)
        fields = await read_optional(request)
        return answer(batch_object(await self._chances.retry(row, fields, key_id_of(request))))

    async def state(self, request: Request, batch_id: str) -> Response:
        """What the run says of itself: whether it is paused, and why its models wait."""
        await self._row(request, batch_id)
        state = await self._temporal.state(batch_id)
        if state is None:
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            raise ApiError(503, "No worker answers for this batch now.", headers=headers)
        return answer(state)

    async def _row(self, request: Request, batch_id: str) -> BatchRow:
        tenant = tenant_of(request, self._services.settings)
        row = await self._batches.get(tenant, batch_id) if is_batch_id(batch_id) else None
        if row is None:
            raise no_batch(batch_id)
        return row

    async def _order(self, creation: Creation, tenant: str) -> BatchOrder:
        """A new order. Raises ApiError where the tenant may not give it now."""
        await self._check_purpose(tenant, creation.input_file_id)
        order = make_order(creation, tenant, self._services.clock(), self._services.settings)
        await Allowance(self._services, tenant).admit_batch(order.batch_id)
        return order

    async def _first_order(self, creation: Creation, tenant: str, key: str, fingerprint: str) -> BatchOrder:
        """The order that the key belongs to: whoever sends it again goes on where the first one broke off."""
        keys = Keys(self._services, tenant, "batches")
        made = await keys.find(key, fingerprint)
        if made is None:
            order = await self._order(creation, tenant)
            made = await keys.claim(key, fingerprint, order.model_dump_json())
            if made is None:
                return order
            await Allowance(self._services, tenant).withdraw(order.batch_id)
        return BatchOrder.model_validate_json(made)

    async def begin(self, order: BatchOrder) -> BatchRow:
        # The run first: it can make its row, while a row could not make its run.
        try:
            await self._temporal.start(order)
        except TemporalUnavailable:
            await Allowance(self._services, order.tenant).withdraw(order.batch_id)
            raise
        return await self._row_of(order)

    async def _row_of(self, order: BatchOrder) -> BatchRow:
        """The new batch's row. Where the database fails now, the run makes it later: it has started."""
        try:
            return await self._batches.upsert(order)
        except DatabaseUnavailable:
            logger.warning("a batch's row is left to its run", extra={"batch_id": order.batch_id})
            return BatchRow(order=order, status=BatchStatus.VALIDATING)

    async def _check_purpose(self, tenant: str, file_id: str) -> None:
        row = await self._services.database.files.get(tenant, file_id) if is_file_id(file_id) else None
        if row is not None and row.purpose != "batch":
            message = (
                f"Invalid value for 'input_file_id': the file's purpose is '{row.purpose}', not 'batch'."
            )
            raise invalid_value("input_file_id", message)

    async def _steerable(self, request: Request, batch_id: str, verb: str) -> BatchRow:
        """The row of a batch that runs and was not asked to stop."""
        row = await self._row(request, batch_id)
        self._check_steerable(row, verb)
        return row

    def _check_steerable(self, row: BatchRow, verb: str) -> None:
        status = _shown(row)
        if status not in states.LIVE:
            raise conflict(f"Cannot {verb} a batch with status '{status}'.")

    def _cancels(self, row: BatchRow) -> bool:
        """Whether the batch has yet to be told. Raises ApiError where it ended another way."""
        effect = states.cancel(_shown(row))
        if effect is Cancel.REFUSED:
            raise conflict(f"Cannot cancel a batch with status '{row.status}'.")
        return effect is Cancel.STOPS

    def _refuse_live(self, row: BatchRow) -> None:
        if row.status in states.LIVE:
            raise RunMissing(row.order.batch_id)


def _shown(row: BatchRow) -> BatchStatus:
    return states.shown_status(row.status, cancel_requested=row.cancel_requested_at is not None)
