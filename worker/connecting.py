"""What a starting worker waits for: Temporal with its namespace, the storage, the rates set at run time."""

from temporalio.client import Client
from temporalio.runtime import Runtime
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.rates import FleetRates
from batchwright.rules.rates import RatesConflict
from batchwright.settings import Settings, SettingsError
from batchwright.storage.base import Storage, StorageUnavailable
from batchwright.temporal import Connection, TemporalUnavailable, open_connection
from batchwright.temporal.namespace import Namespace


async def connected(settings: Settings, runtime: Runtime) -> tuple[Client, Connection]:
    """Tries for `startup_seconds`.

    Raises:
        TemporalUnavailable: no answer by then, or batches cannot run in the namespace.
        SettingsError: a file of certificates or keys is not what it should be.
    """
    async for attempt in _tries(settings, TemporalUnavailable):
        with attempt:
            client, connection = await open_connection(settings, runtime=runtime)
            await Namespace(client, settings).check()
            return client, connection
    raise AssertionError("unreachable: the last attempt raises")


async def check_storage(settings: Settings, storage: Storage) -> None:
    """Tries for `startup_seconds`. Raises StorageUnavailable."""
    async for attempt in _tries(settings, StorageUnavailable):
        with attempt:
            await storage.check()


async def check_rates(settings: Settings, rates: FleetRates) -> None:
    """Tries for `startup_seconds`, for PostgreSQL may have gone since it was first reached.

    Raises:
        DatabaseUnavailable: no answer by then.
        SettingsError: with the rates changed at run time, the settings leave nothing for some models.
    """
    async for attempt in _tries(settings, DatabaseUnavailable):
        with attempt:
            try:
                await rates.refresh()
            except RatesConflict as conflict:
                raise SettingsError(
                    "BATCHWRIGHT_REQUESTS_PER_SECOND and BATCHWRIGHT_MODELS do not fit the rates set at run "
                    f"time: {conflict}. `batchwright rates` lists them, `batchwright rates clear` "
                    "reverts one."
                ) from None


def _tries(settings: Settings, failure: type[Exception]) -> AsyncRetrying:
    return AsyncRetrying(
        retry=retry_if_exception_type(failure),
        stop=stop_after_delay(settings.startup_seconds),
        wait=wait_fixed(0.5),
        reraise=True,
    )
