"""Live progress of batches: every 2 s, each worker writes the counts of all its slices in one statement."""

import asyncio
import logging

from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import SliceProgress
from batchwright.database.tables.batches.progress import ProgressTable
from batchwright.telemetry.outage_log import OutageLog

logger = logging.getLogger(__name__)
REPORT_SECONDS = 2.0


class ProgressReporter:
    """The writer of the line counts that the API shows while a batch runs.

    The counts are only for display. Finalization counts the lines again.
    """

    def __init__(self, table: ProgressTable) -> None:
        self._table = table
        self._pending: dict[tuple[str, str, int], SliceProgress] = {}
        self._outages = OutageLog(logger, "progress cannot be written")
        self._writing = asyncio.Lock()  # one write at a time, so that older numbers are not written last

    def report(self, progress: SliceProgress) -> None:
        """Buffer the counts of a slice for the next write. Older counts of the same slice in the buffer are
        replaced.
        """
        self._pending[progress.batch_id, progress.model, progress.number] = progress

    async def run(self) -> None:
        """Write the buffered counts every 2 s until cancelled.

        Call `send` afterwards to write the last counts.
        """
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            await self.send()

    async def send(self) -> None:
        """Write the buffered counts now.

        Counts that cannot be written stay in the buffer for the next call, because a finished slice does not
        report its counts again. An unavailable database is only logged.
        """
        async with self._writing:
            pending, self._pending = self._pending, {}
            if not pending:
                return
            try:
                await self._table.record(list(pending.values()))
                self._outages.succeeded()
            except BaseException as error:
                self._pending = {**pending, **self._pending}
                if not isinstance(error, DatabaseUnavailable):
                    raise
                self._outages.failed(error)
