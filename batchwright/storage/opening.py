"""The storage the settings ask for."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from batchwright.rules.locations import Directory, location
from batchwright.settings import Settings
from batchwright.storage.base import Storage
from batchwright.storage.local import LocalStorage
from batchwright.storage.observed import Component, ObservedStorage, Watch
from batchwright.telemetry.metrics import Metrics

CRASHED_AFTER = timedelta(days=1)  # no writer takes that long


@asynccontextmanager
async def open_storage(
    settings: Settings, metrics: Metrics, component: Component
) -> AsyncGenerator[Storage, None]:
    """Observed, from a directory or a bucket; closed at the end.

    Raises:
        StorageUnavailable: the directory cannot be made, or boto's own settings are wrong.
    """
    place = location(settings.storage) if settings.storage else Directory(settings.storage_dir)
    watch = Watch(metrics, component)
    if isinstance(place, Directory):
        yield ObservedStorage(await _local(place.path), watch)
        return
    # Imported when it is used: it takes a second and 40 MB.
    from batchwright.storage.s3.opening import open_s3

    async with open_s3(settings, place, watch.repeated) as storage:
        yield ObservedStorage(storage, watch)


async def _local(directory: Path) -> LocalStorage:
    """Made where there is none, and cleared of what crashed writers left."""
    storage = LocalStorage(directory)
    await storage.sweep(CRASHED_AFTER)
    return storage
