"""Retries dead letters in a new batch. A repeated request creates no second batch.

A dead letter is a line that used up its attempts.
"""

from collections.abc import Mapping, Sequence

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import conflict
from batchwright.api.services.batches.creation import BatchCreator
from batchwright.api.services.batches.failed_lines import copy_lines
from batchwright.api.services.batches.rerun import RerunBuilder
from batchwright.api.services.expensive_task_limiter import ExpensiveTaskLimiter
from batchwright.api.services.quota_checks import QuotaChecks
from batchwright.contracts.temporal_payloads.batch import BatchOrder, RerunKind, SourceBatch
from batchwright.database.records import BatchRow
from batchwright.database.tables.batches.dead_letters import StoredDeadLetter
from batchwright.database.tables.tenants.admissions import Admission
from batchwright.rules.results.output_lines import request_digest

_ATTEMPTS = 3
_AT_ONCE = 4  # a retry reads the input of its batch, and writes a new one
_WAIT_SECONDS = 60.0


class DeadLetterRetries:
    def __init__(self, deps: ApiDependencies) -> None:
        self._deps, self._creator = deps, BatchCreator(deps)
        self._dead_letters = deps.database.dead_letters
        self._builder = RerunBuilder(deps, self._creator)
        self._limiter = ExpensiveTaskLimiter(
            _AT_ONCE, _WAIT_SECONDS, work="inputs of batches are being copied"
        )

    async def retry_one(self, found: StoredDeadLetter, fields: Mapping[str, object]) -> BatchRow:
        """Return the batch that retries a dead letter (a line that used up its attempts). If there is no such
        batch yet, create it.

        Args:
            found: the dead letter.
            fields: body of the request, which can set the completion window.

        Raises:
            ApiError: the dead letter or its batch no longer exists, a field is not valid, or a quota is
                exhausted.
        """
        if found.retry is not None:
            return await self._creator.start_unless_there(found.retry)
        order = await self._claimed_order(found.tenant, found.batch_id, [found.dead_letter.id], fields)
        if order is None:  # the dead letter was retried or deleted in the meantime
            again = await self._dead_letters.get(found.dead_letter.id)
            if again is None or again.retry is None:
                raise conflict(f"The dead letter '{found.dead_letter.id}' was deleted meanwhile.")
            order = again.retry
        return await self._creator.start_unless_there(order)

    async def retry_all(self, tenant: str, batch_id: str, fields: Mapping[str, object]) -> list[BatchRow]:
        """Retry the dead letters of a batch (lines that used up their attempts) in one new batch. Leave out
        dead letters that another new batch retries.

        If an earlier call has created a batch but was interrupted before the start, start that batch, too.
        Return the rows of the started batches; empty if there is nothing to retry.

        Args:
            tenant: tenant of the batch.
            batch_id: id of the batch that has the dead letters.
            fields: body of the request, which can set the completion window.

        Raises:
            ApiError: the original batch no longer exists, a field is not valid, or a quota is exhausted.
        """
        orders = await self._dead_letters.unstarted_retries(tenant, batch_id)
        for _ in range(_ATTEMPTS):
            ids = await self._dead_letters.unretried_ids(tenant, batch_id)
            order = await self._claimed_order(tenant, batch_id, ids, fields) if ids else None
            if order is not None:
                orders.append(order)
            if order is not None or not ids:
                break
        return [await self._creator.start_unless_there(order) for order in orders]

    async def _claimed_order(
        self, tenant: str, batch_id: str, ids: Sequence[str], fields: Mapping[str, object]
    ) -> BatchOrder | None:
        """Reserve dead letters for a new batch that will retry them. Return the order of the new batch: the
        message with which the caller must start the batch.

        If a dead letter was deleted or is reserved for another new batch, reserve none and return None.

        Args:
            tenant: tenant of the batches.
            batch_id: id of the batch that has the dead letters.
            ids: ids of the dead letters (lines that used up their attempts).
            fields: body of the request.

        Raises:
            ApiError: the original batch no longer exists, a field is not valid, a quota is exhausted, or too
                many inputs are being copied (429).
        """
        async with self._limiter.slot(tenant, batch_id) as waited:
            if waited and not set(ids) <= set(await self._dead_letters.unretried_ids(tenant, batch_id)):
                return None
            return await self._claim(tenant, batch_id, ids, fields)

    async def _claim(
        self, tenant: str, batch_id: str, ids: Sequence[str], fields: Mapping[str, object]
    ) -> BatchOrder | None:
        row = await self._deps.database.batches.get(tenant, batch_id)
        if row is None:
            raise conflict(f"The batch '{batch_id}' of these dead letters no longer exists.")
        parameters = self._builder.parameters(row, fields, key_id="")  # requested by an operator
        await QuotaChecks(self._deps, tenant).check_live_batches()

        source = await self._builder.file_of(row, row.order.input_file_id, "retry")
        digests = b"".join(map(request_digest, ids))
        async with self._builder.reading(row, source):
            file = await copy_lines(row, digests, source, self._deps)
        requests = len(ids) if row.order.policy.message_requests else 0
        changed = {"input_file_id": file.id, "message_requests": requests}
        order = await self._builder.order(row, parameters.model_copy(update=changed))
        order = order.model_copy(update={"origin": SourceBatch(batch_id=batch_id, kind=RerunKind.RETRY)})

        async def claim(admissions: Sequence[Admission]) -> BatchOrder | None:
            claimed = await self._dead_letters.claim(ids, order, file, admissions=admissions)
            return order if claimed else None

        return await self._builder.admit_and_claim(order, file, claim)
