"""Waits for background tasks that production code starts and does not wait for."""

import asyncio


async def reasons_published() -> None:
    """Wait until all waiting reasons that were reported or cleared so far are published."""
    await _ended("publish_waiting_reason")


async def key_uses_recorded() -> None:
    """Wait until all uses of API keys so far are in the database, or could not be stored."""
    await _ended("record_key_use")


async def _ended(name: str) -> None:
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == name))
