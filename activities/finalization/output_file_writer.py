"""Write the output and error file of a batch to storage (or delete them), and make their database rows."""

import asyncio
import logging
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Literal

from batchwright.activities.batch_end.output_files import OUTPUT_KINDS, file_lifetime, output_file_row
from batchwright.activities.concurrency import run_both
from batchwright.activities.stored_results.input_order_index import ResultIndex, SelectedResults
from batchwright.activities.stored_results.result_spool import ResultSpool
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import FileRow
from batchwright.rules.ids import derived_file_id
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import Settings
from batchwright.storage.base import ObjectInfo, Storage, StorageError

logger = logging.getLogger(__name__)
_DISCARD_SECONDS = 5.0  # the workflow waits 10 s for a cancelled step


class OutputFileWriter:
    """The writer of the output and error file in one attempt to finalize a batch.

    All attempts use the same file ids, but each attempt has its own storage keys.
    """

    def __init__(self, storage: Storage, settings: Settings, order: BatchOrder, status: BatchStatus) -> None:
        self._storage = storage
        self._settings = settings
        self._order = order
        self._status = status
        self._nonce = uuid.uuid4().hex[:12]

    async def write(
        self, spool: ResultSpool, index: ResultIndex, selected: SelectedResults, at: datetime
    ) -> list[FileRow | None]:
        """Write the output file and the error file. Return the database row of each, in this order.

        A file without lines is not written, and None takes the place of its row.

        Args:
            spool: the local file with the results.
            index: the index of the batch's results.
            selected: the results for each file.
            at: creation time of the files.
        """
        return [
            await self._write(kind, spool, index.line_blocks(rows), at) if rows else None
            for kind, rows in zip(OUTPUT_KINDS, (selected.output, selected.error), strict=True)
        ]

    async def discard(self) -> None:
        """Delete the objects that this attempt has written. Call this only if no database row refers to them.

        A storage error is only logged, because the objects are also deleted after the batch has ended.
        """
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                for kind in OUTPUT_KINDS:
                    await self._storage.delete(self._key(kind))
        except (StorageError, TimeoutError) as error:
            logger.warning("files of a failed finalization not deleted", extra={"error": str(error)})

    def _key(self, kind: str) -> str:
        order = self._order
        return object_keys.output_key(order.tenant, derived_file_id(order.batch_id, kind), self._nonce)

    async def _write(
        self, kind: Literal["output", "error"], spool: ResultSpool, blocks: Iterator[bytes], at: datetime
    ) -> FileRow:
        key, size = self._key(kind), 0
        block = await spool.run_in_thread(next, blocks, None)
        async with self._storage.writer(key) as writer:
            while block:
                size += len(block)
                block, _ = await run_both(spool.run_in_thread(next, blocks, None), writer.write(block))
        kept = file_lifetime(self._order, self._status, self._settings)
        return output_file_row(self._order, kind, ObjectInfo(key, size), at, kept)
