"""A worker's connection to Temporal: made once the server and the namespace are there."""

from temporalio.client import Client
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from batchwright.settings import Settings
from batchwright.temporal import Connection, TemporalUnavailable, open_connection, runtime
from batchwright.temporal.namespace import Namespace


async def connected(settings: Settings, sdk_metrics: str) -> tuple[Client, Connection]:
    """Tries for `startup_seconds`; `sdk_metrics` is where the SDK serves its own metrics.

    Raises:
        TemporalUnavailable: no answer by then, or batches cannot run in the namespace.
        SettingsError: a file of certificates or keys is not what it should be.
    """
    made = runtime(sdk_metrics)
    tries = AsyncRetrying(
        retry=retry_if_exception_type(TemporalUnavailable),
        stop=stop_after_delay(settings.startup_seconds),
        wait=wait_fixed(0.5),
        reraise=True,
    )
    async for attempt in tries:
        with attempt:
            client, connection = await open_connection(settings, runtime=made)
            await Namespace(client, settings).check()
            return client, connection
    raise AssertionError("unreachable: the last attempt raises")
