"""Deletes an ended batch and all its data, except its input file."""

import asyncio
import logging

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import RETRY_AFTER_SECONDS, ApiError, batch_not_found, conflict
from batchwright.contracts.api_objects.openai import DeletedBatch
from batchwright.contracts.temporal_names import output_copy_id
from batchwright.contracts.temporal_payloads.output_copies import OutputCopy, OutputCopyState
from batchwright.database.errors import ResultsInUse
from batchwright.database.records import BatchRow
from batchwright.rules.ids import derived_file_id, is_batch_id
from batchwright.rules.stored_objects import object_keys
from batchwright.rules.stored_objects.retention import OUTPUT_KINDS

logger = logging.getLogger(__name__)

# A workflow ends right after the row of its batch, unless a worker crashes between the two.
_END_CHECKS = 20
_END_CHECK_SECONDS = 0.1


class BatchDeletion:
    """The service that deletes batches with all their data.

    First the rows of the files are deleted, then all objects in storage, and last the row of the batch. After
    an interrupted deletion, the batch still exists, but without files. A repeated call completes the
    deletion.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._clock, self._temporal, self._storage = deps.clock, deps.temporal, deps.storage
        self._batches, self._deletions = deps.database.batches, deps.database.batch_deletions
        self._retention = deps.database.retention

    async def delete(self, tenant: str, batch_id: str, key_id: str, *, keep_files: bool) -> DeletedBatch:
        """Delete an ended batch, or complete an interrupted deletion of the batch. Return an object with the
        batch's id. If the batch is already deleted, only return this object.

        Args:
            key_id: id of the API key that requested the deletion, for the log; empty if there is none.
            keep_files: True to keep the output and error files.

        Raises:
            ApiError: the tenant has no such batch (404). The batch or its workflow has not ended, or files of
                the batch are not yet written, or not yet copied to the output location (409). Another batch
                resumes this batch and is still reading the results of this batch (409).
        """
        row = await self._batches.get(tenant, batch_id) if is_batch_id(batch_id) else None
        if row is None:
            if is_batch_id(batch_id) and await self._deletions.is_deleted(tenant, batch_id):
                return DeletedBatch(id=batch_id)
            raise batch_not_found(batch_id)
        await self._check_ended(row)
        await self._check_copied(row)
        try:
            await self._deletions.begin(tenant, batch_id, keep_files=keep_files)
        except ResultsInUse as error:
            raise conflict(
                f"Cannot delete batch '{batch_id}': batch '{error.reader_id}', which resumes it, is still "
                f"reading its results. Delete it when '{error.reader_id}' is no longer 'validating'."
            ) from None
        await self._delete_objects(tenant, batch_id)
        await self._deletions.remove(tenant, batch_id, self._clock())
        extra = {"batch_id": batch_id, "of_tenant": tenant, "key_id": key_id, "keep_files": keep_files}
        logger.info("batch deleted", extra=extra)
        return DeletedBatch(id=batch_id)

    async def _delete_objects(self, tenant: str, batch_id: str) -> None:
        """Delete all stored objects of the batch, except objects of files that still have a database row."""
        ids = [derived_file_id(batch_id, kind) for kind in OUTPUT_KINDS]
        kept = await self._retention.storage_keys(tenant, ids)
        for id in ids:
            async for found in self._storage.list(object_keys.output_key(tenant, id, "")):
                if found.key != kept.get(id):
                    await self._storage.delete(found.key)
        await self._storage.delete_prefix(object_keys.batch_root(tenant, batch_id) + "/")

    async def _check_ended(self, row: BatchRow) -> None:
        """Check that the batch and its workflow have ended, and that all its files are written.

        A workflow that has not ended can still write to the batch, so this method waits up to two seconds
        until the workflow has ended.

        Raises:
            ApiError: the batch or its workflow has not ended, or some files are not written yet (409).
        """
        batch_id = row.order.batch_id
        if not row.status.is_terminal:
            raise conflict(
                f"Cannot delete a batch with status '{row.status}': cancel it, or wait until it ends."
            )
        if row.files_pending:
            raise conflict(
                f"Cannot delete batch '{batch_id}': its files are still to be written. Poll it until "
                "`x_batchwright.files_pending` is false."
            )
        for _ in range(_END_CHECKS):
            if await self._temporal.has_ended(batch_id):
                return
            await asyncio.sleep(_END_CHECK_SECONDS)
        raise _not_yet(
            f"Cannot delete batch '{batch_id}' yet: its workflow is still ending. Try again in a moment."
        )

    async def _check_copied(self, row: BatchRow) -> None:
        """Check that no workflow is copying files of an ended batch to the batch's output location.

        If the database shows no pending copy, the check passes. If the database shows a pending copy, but the
        workflow that copies the files has ended, the check passes, too. For example, a workflow that an
        operator has terminated could not record the end of the copy in the database.

        Raises:
            ApiError: the workflow that copies the files has not ended (409).
        """
        batch_id, copy = row.order.batch_id, row.output_copy or OutputCopy()
        if row.order.output_location is None or copy.state is not OutputCopyState.PENDING:
            return
        if not await self._temporal.has_ended(output_copy_id(batch_id)):
            raise _not_yet(
                f"Cannot delete batch '{batch_id}' yet: its files are still to be written to "
                f"'{row.order.output_location}'. Poll it until the state of `x_batchwright.output_location` "
                "is no longer 'pending'. If you do not need them there, delete its files first."
            )


def _not_yet(message: str) -> ApiError:
    """Return a 409 error with a Retry-After header, so that the client tries again later."""
    return ApiError(409, message, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
