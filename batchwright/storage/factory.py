"""Opens the storage that the settings select: a directory or an S3 bucket."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from batchwright.rules.stored_objects.object_keys import LocalDirectory, parse_location
from batchwright.settings import Settings
from batchwright.storage.base import Storage
from batchwright.storage.local import LocalStorage
from batchwright.storage.observed import ObservedStorage, StorageComponent, StorageInstrumentation
from batchwright.telemetry.metrics import Metrics

_ABANDONED_AFTER = timedelta(days=1)  # no write takes that long


@asynccontextmanager
async def open_storage(
    settings: Settings, metrics: Metrics, component: StorageComponent
) -> AsyncGenerator[Storage, None]:
    """Context manager that opens the configured directory or bucket, and closes it at the end of the block.

    If the storage is a directory, unfinished files that crashed processes left there more than a day ago are
    deleted first.

    Args:
        metrics: metrics in which the operations are counted.
        component: part of the product that uses the storage. The metrics of each component are separate.

    Raises:
        StorageUnavailable: the directory cannot be created, or the settings of boto (the S3 library) are
            wrong.
    """
    place = parse_location(settings.storage) if settings.storage else LocalDirectory(settings.storage_dir)
    instrumentation = StorageInstrumentation(metrics, component)
    if isinstance(place, LocalDirectory):
        local = LocalStorage(place.path)
        await local.sweep(_ABANDONED_AFTER)  # delete what crashed writers left behind
        yield ObservedStorage(local, instrumentation)
        return
    # Imported only if needed: it takes a second and 40 MB.
    from batchwright.storage.s3.storage import open_s3

    async with open_s3(settings, place, instrumentation.count_retry) as storage:
        yield ObservedStorage(storage, instrumentation)
