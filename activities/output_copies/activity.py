"""The activities that copy the output and error file of a batch to the location that the batch names."""

import logging

from temporalio import activity
from temporalio.exceptions import ApplicationError

from batchwright.activities.errors import translated
from batchwright.activities.heartbeat import heartbeating
from batchwright.contracts.errors import FAILURE_SENTENCES, Failure
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.output_copies import (
    OutputCopy,
    OutputCopyActivities,
    OutputCopyState,
)
from batchwright.database.database import Database
from batchwright.database.records import BatchRow
from batchwright.rules.stored_objects.object_locations import parse_output_location
from batchwright.settings import Settings
from batchwright.storage.base import ObjectMissing, ObjectRefused, Storage, StorageUnavailable
from batchwright.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)
_DELETED = "The batch was deleted before its files were written there."
_NO_WORKER = "No worker wrote the files in time."
_NOT_FOUND = "Object storage does not find a file of the batch."


class CopyImpossible(Exception):
    """The exception that is raised if files cannot be copied and a retry does not help.

    The message is for the tenant.
    """


class OutputCopies(OutputCopyActivities):
    """The activities that copy the files of ended batches to the buckets that the batches name.

    The key of a file in the bucket contains the batch's id. All attempts write the same bytes under the same
    key, so a repeated attempt does no harm.
    """

    def __init__(self, database: Database, storage: Storage, settings: Settings, metrics: Metrics) -> None:
        self._database, self._storage = database, storage
        self._settings, self._metrics = settings, metrics

    @activity.defn
    async def copy_output(self, order: BatchOrder) -> OutputCopyState:
        """Copy the files of an ended batch to its output location, and return the state of the copy.

        The state is `written` if all files were copied, or if the batch has no files. It is `failed` if a
        retry cannot help, for example because the batch was deleted. After all other failures, the activity
        raises an error and is retried. The state and the reason of a failure are stored in the batch's row.

        Raises (ApplicationError, by type):
            StorageUnavailable: the storage or the bucket does not respond, the storage does not find a file,
                or the bucket refuses the files; retried.
            DatabaseUnavailable: the database does not respond; retried.
        """
        async with heartbeating(), translated():
            row = await self._database.batches.get(order.tenant, order.batch_id)
            if row is None:
                return await self._end(order, OutputCopyState.FAILED, _DELETED)
            if row.output_copy is not None and row.output_copy.state is OutputCopyState.WRITTEN:
                return OutputCopyState.WRITTEN
            try:
                await self._copy_files(order, row)
            except CopyImpossible as error:
                return await self._end(order, OutputCopyState.FAILED, str(error))
            except (ObjectMissing, ObjectRefused, StorageUnavailable) as error:
                await self._record(order, OutputCopy(error=_sentence_of(error)))
                fields = {"batch_id": order.batch_id, "error": str(error)}
                _log.warning("files not copied to the output location", extra=fields)
                raise ApplicationError(str(error), type=Failure.STORAGE_UNAVAILABLE) from error
            return await self._end(order, OutputCopyState.WRITTEN, "")

    @activity.defn
    async def give_up_output_copy(self, order: BatchOrder) -> OutputCopyState:
        """Record that no further attempt to copy a batch's files follows. Return the final state of the copy.

        The final state is `failed`, and the batch's row keeps the error of the last attempt. If an attempt
        has copied the files, but its worker could not report the success, the state stays `written`.

        Raises (ApplicationError, by type):
            DatabaseUnavailable: the database does not respond; retried.
        """
        async with heartbeating(), translated():
            row = await self._database.batches.get(order.tenant, order.batch_id)
            copy = OutputCopy() if row is None or row.output_copy is None else row.output_copy
            if copy.state is not OutputCopyState.PENDING:
                return copy.state
            return await self._end(order, OutputCopyState.FAILED, copy.error or _NO_WORKER)

    async def _copy_files(self, order: BatchOrder, row: BatchRow) -> None:
        """Copy the output file and the error file, one after the other.

        Raises:
            CopyImpossible: the tenant may no longer write to the output location, or a file was deleted.
            ObjectMissing: the storage does not find a file, perhaps because a proxy has answered instead of
                the storage.
            ObjectRefused, StorageUnavailable: the bucket refuses a file, or does not respond.
        """
        # Imported only if needed: it takes a second and 40 MB.
        from batchwright.storage.s3.external_objects import object_writer

        url = order.output_location or ""
        prefix = parse_output_location(url)
        if not self._settings.may_write(order.tenant, prefix):
            raise CopyImpossible(f"Tenant '{order.tenant}' may no longer write to '{url}'.")
        for file_id in (row.output_file_id, row.error_file_id):
            if file_id is None:
                continue
            file = await self._database.files.get(order.tenant, file_id)
            if file is None:
                raise CopyImpossible(f"The file '{file_id}' was deleted before it was written there.")
            location = prefix._replace(key=prefix.key + file.filename)
            is_repeated = activity.info().attempt > 1
            async with object_writer(self._settings, location, is_repeated=is_repeated) as writer:
                async for piece in self._storage.read(file.storage_key):
                    await writer.write(piece)

    async def _end(self, order: BatchOrder, state: OutputCopyState, error: str) -> OutputCopyState:
        await self._record(order, OutputCopy(state=state, error=error))
        self._metrics.output_copies.labels(state).inc()
        level = logging.INFO if state is OutputCopyState.WRITTEN else logging.ERROR
        fields = {"batch_id": order.batch_id, "state": state.value, "error": error}
        _log.log(level, "copy to the output location ended", extra=fields)
        return state

    async def _record(self, order: BatchOrder, copy: OutputCopy) -> None:
        await self._database.batches.record_output_copy(order.tenant, order.batch_id, copy)


def _sentence_of(error: ObjectMissing | ObjectRefused | StorageUnavailable) -> str:
    """Return why an attempt failed, as a sentence for the tenant.

    The sentence contains no details of the operator's installation.
    """
    match error:
        case ObjectMissing():
            return _NOT_FOUND
        case ObjectRefused():
            said = str(error)
        case StorageUnavailable():
            said = FAILURE_SENTENCES[Failure.STORAGE_UNAVAILABLE]
    return said[:1].upper() + said[1:]
