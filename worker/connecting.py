"""What a starting worker waits for: Temporal with its namespace, and the storage."""

from temporalio.client import Client
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from batchwright.settings import Settings
from batchwright.storage.base import Storage, StorageUnavailable
from batchwright.temporal import Connection, TemporalUnavailable, open_connection, runtime
from batchwright.temporal.namespace import Namespace


async def connected(settings: Settings, sdk_metrics: str) -> tuple[Client, Connection]:
    """Tries for `startup_seconds`; `sdk_metrics` is where the SDK serves its own metrics.

    Raises:
        TemporalUnavailable: no answer by then, or batches cannot run in the namespace.
        SettingsError: a file of certificates or keys is not what it should be.
    """
    made = runtime(sdk_metrics)
    async for attempt in _tries(settings, TemporalUnavailable):
        with attempt:
            client, connection = await open_connection(settings, runtime=made)
            await Namespace(client, settings).check()
            return client, connection
    raise AssertionError("unreachable: the last attempt raises")


async def check_storage(settings: Settings, storage: Storage) -> None:
    """Tries for `startup_seconds`. Raises StorageUnavailable."""
    async for attempt in _tries(settings, StorageUnavailable):
        with attempt:
            await storage.check()


def _tries(settings: Settings, failure: type[Exception]) -> AsyncRetrying:
    return AsyncRetrying(
        retry=retry_if_exception_type(failure),
        stop=stop_after_delay(settings.startup_seconds),
        wait=wait_fixed(0.5),
        reraise=True,
    )
