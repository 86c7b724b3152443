"""Live counts: one upsert a worker every 2 s for all its slices."""

import asyncio
import logging

from batchwright.database.base import ProgressTable
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import SliceProgress

logger = logging.getLogger(__name__)
EVERY_SECONDS = 2.0


class ProgressReporter:
    """Best effort: the files' counts come from finalization, these are what `GET` shows meanwhile."""

    def __init__(self, table: ProgressTable) -> None:
        self._table = table
        self._news: dict[tuple[str, str, int], SliceProgress] = {}
        self._failing = False
        self._writing = asyncio.Lock()  # one after the other, or older numbers could come in last

    def tell(self, progress: SliceProgress) -> None:
        """What is to be written next; a slice's newest numbers replace older ones."""
        self._news[progress.batch_id, progress.model, progress.number] = progress

    async def run(self) -> None:
        """Writes for ever; to be cancelled, and followed by a last `send`."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.send()

    async def send(self) -> None:
        """Writes the news; a database that is away gets them the next time."""
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
        news, self._news = self._news, {}
        if not news:
            return
        try:
            await self._table.record(list(news.values()))
            self._failing = False
        except DatabaseUnavailable as error:
            if not self._failing:
                logger.warning("progress cannot be written", extra={"error": str(error)})
            self._failing = True
            self._news = {**news, **self._news}
