"""Creates batches.

The service builds the batch's order: the message that starts the batch's workflow and contains everything
that workers need. Then it checks the quotas, starts the workflow, and inserts the batch's row into the
database.
"""

import logging
from datetime import datetime
from typing import NamedTuple

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, conflict, invalid_value
from batchwright.api.schemas.batch_create import BatchCreate
from batchwright.api.schemas.start_time import check_start_at
from batchwright.api.schemas.webhooks import WebhookSpec
from batchwright.api.services.idempotency import IdempotencyKeys
from batchwright.api.services.quota_checks import QuotaChecks
from batchwright.api.services.webhooks import Webhooks
from batchwright.contracts.api_objects.openai import BatchWebhook
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.batch_schedules import BatchTemplate
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import DatabaseUnavailable, ResultsGone
from batchwright.database.records import BatchRow, FileRow
from batchwright.rules.ids import is_file_id, new_batch_id
from batchwright.rules.stored_objects.object_locations import parse_object, parse_output_location
from batchwright.settings import Settings
from batchwright.temporal.batch_order import PriorityNotAllowed, build_order
from batchwright.temporal.errors import TemporalUnavailable

logger = logging.getLogger(__name__)


def check_input_location(settings: Settings, url: str, tenant: str, param_prefix: str = "") -> None:
    """Check that the tenant may read an object in S3. The object itself is not read.

    Args:
        url: URL of the object.
        param_prefix: prefix of the parameter's name in the error. With the prefix `batch.`, the error names
            `batch.input_file_id`.

    Raises:
        ApiError: the URL is not valid, or the operator has not allowed it (403). The error does not reveal
            whether the object exists.
    """
    param = f"{param_prefix}input_file_id"
    try:
        location = parse_object(url)
    except ValueError as error:
        raise invalid_value(param, f"Invalid '{param}': {error}.") from None
    if not settings.may_read(tenant, location):
        message = (
            f"Tenant '{tenant}' may not read from '{url}'. Upload the file, or ask the operator to add "
            "it to BATCHWRIGHT_DATA_LOCATIONS."
        )
        raise ApiError(403, message, code="location_not_allowed", param=param)


def check_output_location(settings: Settings, url: str, tenant: str, param_prefix: str = "") -> None:
    """Check that the tenant may write to an output location. Nothing is written now.

    Args:
        url: URL prefix of the location, which must be valid.
        param_prefix: prefix of the parameter's name in the error. With the prefix `batch.`, the error names
            `batch.x_batchwright.output_location`.

    Raises:
        ApiError: the operator has not allowed this location (403).
    """
    if not settings.may_write(tenant, parse_output_location(url)):
        message = (
            f"Tenant '{tenant}' may not write to '{url}'. Leave out 'output_location', or ask the operator "
            "to add it to BATCHWRIGHT_DATA_LOCATIONS."
        )
        param = f"{param_prefix}x_batchwright.output_location"
        raise ApiError(403, message, code="location_not_allowed", param=param)


class CreatedBatch(NamedTuple):
    """A new batch, and its webhook endpoint (a URL that gets the batch's events).

    `webhook` is None in two cases: the client requested no endpoint, or the request was sent again with the
    same idempotency key and the client has deleted the endpoint meanwhile.
    """

    row: BatchRow
    webhook: BatchWebhook | None


class BatchCreator:
    def __init__(self, deps: ApiDependencies) -> None:
        self._deps, self._webhooks = deps, Webhooks(deps)
        self._batches = deps.database.batches

    async def create(self, creation: BatchCreate, tenant: str) -> CreatedBatch:
        """Create a batch and return it.

        Raises:
            ApiError: the purpose of the input file is not `batch`. The webhook's URL, the input location, the
                output location, the priority or the start time is not allowed. A quota is exhausted.
        """
        order = await self._checked_order(creation, tenant)
        await QuotaChecks(self._deps, tenant).admit_batch(order.batch_id)
        webhook = await self._create_webhook(creation.webhook, order)
        return CreatedBatch(await self.start(order), webhook)

    async def create_once(
        self, creation: BatchCreate, tenant: str, key: str, fingerprint: str, file: FileRow | None = None
    ) -> CreatedBatch:
        """Create a batch for an idempotency key and return the batch. A repeated call returns the same batch.

        A repeated call returns the batch with its first status, `validating`, and with its webhook endpoint.
        If the first call was interrupted before the batch was started, the repeated call starts the batch.
        The completion window of the batch then counts from the repeated call.

        Args:
            key: the idempotency key.
            fingerprint: digest of the request. If another digest is stored with the key, the key was used
                for another request.
            file: a new input file, whose object is already stored. If no earlier call has stored the key,
                this call stores the key and inserts the row of the file. None if the input file already has
                a row.

        Raises:
            ApiError: as in `create`, or the key was used with another request, or the batch of this key was
                deleted.
        """
        keys = IdempotencyKeys(self._deps, tenant, "batches")
        stored = await keys.find(key, fingerprint)
        if stored is None:
            order = await self._checked_order(creation, tenant)
            checks = QuotaChecks(self._deps, tenant)
            admissions = await checks.batch_admissions(order.batch_id, file)
            async with checks.quota_errors():
                stored = await keys.claim(
                    key, fingerprint, order.model_dump_json(), file, admissions=admissions
                )
            if stored is None:
                webhook = await self._create_webhook(creation.webhook, order)
                return CreatedBatch(_as_created(order, await self.start(order)), webhook)
        return await self.repeat(stored, creation.webhook)

    async def repeat(self, stored: str, webhook: WebhookSpec | None = None) -> CreatedBatch:
        """Return the batch of an earlier request with the same idempotency key, like a repeated call of
        `create_once`.

        Args:
            stored: the order (the message that starts the batch's workflow) that is stored with the key, as
                JSON.
            webhook: webhook endpoint in the repeated request; None if the request has none.

        Raises:
            ApiError: the batch was deleted (409). The earlier request has not started the batch, and this
                call cannot start it, because the tenant has too many live batches (429).
        """
        order = BatchOrder.model_validate_json(stored)
        row = await self._batches.get(order.tenant, order.batch_id)
        if row is not None:
            endpoint = None if webhook is None else await self._webhooks.find_for_batch(order)
        else:
            if await self._deps.database.batch_deletions.is_deleted(order.tenant, order.batch_id):
                raise conflict(
                    f"Batch '{order.batch_id}', which was created with this Idempotency-Key, was deleted. "
                    "Use another key to create a new batch.",
                    param="Idempotency-Key",
                )
            restarted = await self._order_to_restart(order)
            endpoint = await self._create_webhook(webhook, restarted)
            row = await self.start(restarted)
        return CreatedBatch(_as_created(order, row), endpoint)

    async def build_order(
        self, template: BatchTemplate, tenant: str, start_at: datetime | None = None
    ) -> BatchOrder:
        """Build the order: the message that starts the workflow of a new batch.

        Args:
            start_at: time at which the batch starts; None to start it now.

        Raises:
            ApiError: the tenant may not use the requested priority.
        """
        now = self._deps.clock()
        own = await self._deps.database.quotas.get(tenant)
        try:
            return build_order(
                *(template, new_batch_id(), tenant, now, self._deps.settings),
                start_at=start_at,
                fairness_key=await self._deps.database.batch_list.fairness_key(tenant, now),
                fairness_weight=own.weight,
                max_priority=own.highest_priority,
            )
        except PriorityNotAllowed as error:
            raise invalid_value("x_batchwright.priority", str(error)) from None

    async def start(self, order: BatchOrder) -> BatchRow:
        """Start the workflow of a new batch with its order (the start message), insert the batch's row, and
        return the row.

        Call this only after the quota check has admitted the batch.

        If an earlier call has already started the workflow with another order, return the row with the order
        of the earlier call. If the database does not respond, return a row that is not inserted yet. The
        workflow, or the next request that reads the batch, inserts the row later.

        Raises:
            TemporalUnavailable: the workflow was not started, or the order of the running workflow cannot be
                read. The batch no longer counts towards the quota.
            UnknownBatch: the batch was deleted while this call ran.
        """
        # The workflow is started first. It can insert a missing row, but a row cannot start its workflow.
        try:
            is_new = await self._deps.temporal.start(order)
            if not is_new and order.policy.rolling is None:  # all starts of a rolling batch have one order
                order = await self._deps.temporal.running_order(order.batch_id) or order
        except TemporalUnavailable:
            await QuotaChecks(self._deps, order.tenant).release(order.batch_id)
            raise
        try:
            return await self._batches.upsert(order)
        except DatabaseUnavailable:
            fields = {"batch_id": order.batch_id}
            logger.warning("batch row not inserted, its workflow will insert it", extra=fields)
            return BatchRow(order=order, status=BatchStatus.VALIDATING)

    async def start_unless_there(self, order: BatchOrder) -> BatchRow:
        """Return the row of a batch. If no earlier call has created the row, start the batch first.

        If this call starts the batch, the batch's completion window counts from now.

        Args:
            order: message that starts the batch's workflow.

        Raises:
            ApiError: the batch cannot be started, because the tenant already has as many live batches as its
                quota allows (429).
            ResultsGone: the batch cannot be started, because it resumes an ended batch whose results are no
                longer kept.
            UnknownBatch: the batch was deleted while this call ran.
            TemporalUnavailable: the batch has no row and cannot be started. Either Temporal does not respond,
                or the start message of the running workflow cannot be decrypted. The batch no longer counts
                towards the tenant's quota of live batches.
            DatabaseUnavailable: the database does not respond. This call has not started the batch.
        """
        row = await self._batches.get(order.tenant, order.batch_id)
        return await self.start(await self._order_to_restart(order)) if row is None else row

    async def _order_to_restart(self, order: BatchOrder) -> BatchOrder:
        """Return the order (the start message) for a batch that has a stored order but no row yet.

        - If the batch's workflow runs, return the order with which the workflow was started.
        - Otherwise, return the stored order with a completion window that counts from now. Also count the
          batch towards the tenant's quota. It was counted when its order was stored, but that count expires.

        Raises the same errors as `start_unless_there`, except UnknownBatch.
        """
        checks = QuotaChecks(self._deps, order.tenant)
        try:  # the batch may run: its row is inserted late if the database did not respond
            running = await self._deps.temporal.running_order(order.batch_id)
        except TemporalUnavailable:
            await checks.release(order.batch_id)
            raise
        if running is not None:
            return running
        order = order.started_later(self._deps.clock())
        await checks.admit_batch(order.batch_id)
        try:
            await self._deps.database.reruns.keep_results(order)
        except ResultsGone:
            await checks.release(order.batch_id)
            raise
        return order

    async def _checked_order(self, creation: BatchCreate, tenant: str) -> BatchOrder:
        """Check a request for a new batch. Return the batch's order: the message that starts its workflow.

        Raises:
            ApiError: as in `create`, except that no quota is checked.
        """
        check_start_at(creation.start_at, self._deps.clock())  # a repeated request may come after the start
        if creation.webhook is not None:
            await self._webhooks.check_url(creation.webhook.url, "x_batchwright.webhook.url", tenant)
        template = creation.template
        if template.input_location is not None:
            check_input_location(self._deps.settings, template.input_location, tenant)
        if template.output_location is not None:
            check_output_location(self._deps.settings, template.output_location, tenant)
        file_id = template.input_file_id
        row = await self._deps.database.files.get(tenant, file_id) if is_file_id(file_id) else None
        if row is not None and row.purpose != "batch":
            message = (
                f"Invalid value for 'input_file_id': the file's purpose is '{row.purpose}', not 'batch'."
            )
            raise invalid_value("input_file_id", message)
        return await self.build_order(template, tenant, creation.start_at)

    async def _create_webhook(self, webhook: WebhookSpec | None, order: BatchOrder) -> BatchWebhook | None:
        """Create the webhook endpoint of the batch, and return it; None if the client requested no endpoint.

        Call this before the batch starts, so that the endpoint gets all events.
        """
        if webhook is None:
            return None
        return await self._webhooks.create_for_batch(webhook, order)


def _as_created(order: BatchOrder, row: BatchRow) -> BatchRow:
    """Return a batch's row as it was when the batch was created, for the response to a repeated request.

    Args:
        order: the order (the message that starts the batch's workflow) that was stored with the idempotency
            key.
        row: the batch's present row. Creation time, start time and deadline are taken from this row. If a
            repeated request has started the batch, these times are later than in `order`.
    """
    started = row.order
    times = {
        "created_at": started.created_at,
        "start_at": started.start_at,
        "deadline": started.deadline,
    }
    return BatchRow(order=order.model_copy(update=times), status=BatchStatus.VALIDATING)
