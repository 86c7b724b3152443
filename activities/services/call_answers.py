"""Store the results of calls, so that clients can fetch them as answers.

A call is a single request that a client sends without a batch. Calls run as the lines of rolling batches.
"""

import asyncio
import logging
from collections.abc import Sequence

from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.calls import CallsTable
from batchwright.rules.calls.call_results import answers_of
from batchwright.telemetry.outage_log import OutageLog

logger = logging.getLogger(__name__)
_RECORD_SECONDS = 2.0


class CallAnswers:
    """The recorder of the answers of calls. It is called as soon as the results of the calls are stored.

    A call is a single request of a client. It runs as a line of a rolling batch. Each rolling batch has its
    own recorder. If the recording fails, finalization records the answers later.
    """

    def __init__(self, calls: CallsTable, tenant: str) -> None:
        self._calls, self._tenant = calls, tenant
        self._outages = OutageLog(logger, "answers of calls are recorded later")

    async def record(self, lines: Sequence[bytes]) -> None:
        """Store results as the answers of their calls, so that clients can fetch them.

        If this fails, only log it.

        Args:
            lines: the results, in the format of the output and error files.
        """
        with self._outages.suppress(DatabaseUnavailable, TimeoutError):
            async with asyncio.timeout(_RECORD_SECONDS):
                await self._calls.answer(self._tenant, answers_of(lines))
