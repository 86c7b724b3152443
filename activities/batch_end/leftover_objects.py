"""Deletes the objects that an ended batch no longer needs."""

import logging

from batchwright.activities.batch_end.output_files import OUTPUT_KINDS
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.database.tables.files import FilesTable
from batchwright.rules.ids import derived_file_id
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import Storage, StorageError

_log = logging.getLogger(__name__)


async def delete_scratch(
    storage: Storage, files: FilesTable, order: BatchOrder, *, keep_results: bool
) -> None:
    """Delete the objects that an ended batch no longer needs: intermediate objects and unused output files.

    A storage error is only logged, because retention (the regular deletion of old data) deletes the objects
    later.

    Args:
        keep_results: True to keep the intermediate objects, so that another batch can resume this batch.
    """
    try:
        await _delete_superseded(storage, files, order)
        if keep_results:
            return
        await storage.delete_prefix(object_keys.batch_root(order.tenant, order.batch_id) + "/")
    except StorageError as error:
        _log.warning("scratch objects not deleted", extra={"batch_id": order.batch_id, "error": str(error)})


async def _delete_superseded(storage: Storage, files: FilesTable, order: BatchOrder) -> None:
    """Delete the stored output and error files that no database row of the batch refers to.

    Each attempt to finalize the batch writes its own files. Call this only after the batch has ended. Before
    that, it is not known which attempt's files are final.
    """
    for kind in OUTPUT_KINDS:
        id = derived_file_id(order.batch_id, kind)
        row = await files.get(order.tenant, id)
        stale = [
            info.key
            async for info in storage.list(object_keys.output_key(order.tenant, id, ""))
            if row is None or info.key != row.storage_key
        ]
        for key in stale:
            await storage.delete(key)
