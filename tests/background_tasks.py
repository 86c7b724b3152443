"""Functions that wait for background tasks which production code starts without waiting for them."""

import asyncio

from batchwright.activities.services.waiting_reason_publisher import PUBLISH_TASK
from batchwright.api.auth.key_cache import RECORD_TASK


async def reasons_published() -> None:
    """Wait until all waiting reasons that were reported or cleared so far are published."""
    await _ended(PUBLISH_TASK)


async def key_uses_recorded() -> None:
    """Wait until all uses of API keys so far are in the database, or could not be stored."""
    await _ended(RECORD_TASK)


async def _ended(name: str) -> None:
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == name))
