"""Health checks of the worker's dependencies, at startup and while it runs.

The worker accepts no slices (parts of batches) while PostgreSQL or object storage is unavailable.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from temporalio.client import Client
from temporalio.runtime import Runtime
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from batchwright.background import BackgroundTaskFailing
from batchwright.database.errors import DatabaseError, DatabaseUnavailable
from batchwright.inference.limits.fleet_rate_limits import FleetRates
from batchwright.rules.limits.rate_allocation import RatesConflict
from batchwright.settings import Settings, SettingsError
from batchwright.storage.base import Storage, StorageError, StorageUnavailable
from batchwright.temporal import TemporalConnection, TemporalUnavailable, open_connection
from batchwright.temporal.namespace.namespace_checks import Namespace

logger = logging.getLogger(__name__)
HealthCheck = Callable[[], Awaitable[None]]
OK = "ok"
STARTUP_SECONDS = 30.0  # maximum wait of a starting worker for its dependencies
_CHECK_TIMEOUT_SECONDS = 5.0
_CHECK_INTERVAL_SECONDS = 5.0
# A single failure may be transient. A slice that cannot store its results keeps them and retries itself.
_FAILURES_BEFORE_BLOCKING = 2


class DependencyMonitor:
    """The regular checks of dependencies, which decide if the worker may start slices (send lines).

    Args:
        checks: health checks by the name of the dependency.
        required: names of the dependencies that slices need. A failure of any other dependency does not block
            slices.
        every_seconds: pause between two checks.

    Attributes:
        failing: text with the required dependencies that failed the last check, and their errors; empty if
            none failed.
        blocking: text that says why the worker must not start slices; empty if the worker may start slices.
            After two failed checks in a row, `blocking` is the same text as `failing`. After a successful
            check, `blocking` is empty again.
    """

    def __init__(
        self,
        checks: Mapping[str, HealthCheck],
        *,
        required: frozenset[str],
        every_seconds: float = _CHECK_INTERVAL_SECONDS,
    ) -> None:
        self._checks, self._required, self._every = checks, required, every_seconds
        self._failures = 0
        self.failing = ""  # required dependencies that failed the last check, with their errors
        self.blocking = ""  # why no slices are accepted; empty while they are

    async def run(self) -> None:
        """Check all dependencies regularly until cancelled, and update `failing` and `blocking`."""
        while True:
            states = await self.check_all()
            self._update({name: states[name] for name in sorted(self._required) if states[name] != OK})
            await asyncio.sleep(self._every)

    async def check_all(self) -> dict[str, str]:
        """Check every dependency now. Return `ok` or an error message for each, by the dependency's name."""
        states = await asyncio.gather(*(_check_state(check) for check in self._checks.values()))
        return dict(zip(self._checks, states, strict=True))

    def _update(self, failed: Mapping[str, str]) -> None:
        self._failures = self._failures + 1 if failed else 0
        self.failing = "; ".join(f"{name}: {state}" for name, state in failed.items())
        if self._failures >= _FAILURES_BEFORE_BLOCKING:
            if not self.blocking:
                logger.error("slices are not accepted: a dependency is unavailable", extra={"failed": failed})
            self.blocking = self.failing
        elif self.blocking and not failed:
            self.blocking = ""
            logger.info("slices are accepted again")


async def _check_state(check: HealthCheck) -> str:
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_SECONDS):
            await check()
    except (
        BackgroundTaskFailing,
        DatabaseError,
        StorageError,
        TemporalUnavailable,
        TimeoutError,
    ) as error:
        return str(error) or f"no answer within {_CHECK_TIMEOUT_SECONDS:g} s"
    return OK


async def connect_temporal(settings: Settings, runtime: Runtime) -> tuple[Client, TemporalConnection]:
    """Connect to Temporal and check that batches can run in its namespace. Retry for `STARTUP_SECONDS`.

    Raises:
        TemporalUnavailable: the last attempt failed: Temporal did not respond, or batches cannot run in the
            namespace.
        SettingsError: a certificate or key file cannot be read or is invalid.
    """
    async for attempt in _retrying(TemporalUnavailable):
        with attempt:
            client, connection = await open_connection(settings, runtime=runtime)
            await Namespace(client, settings).check()
            return client, connection
    raise AssertionError("unreachable: the last attempt raises")


async def check_storage(storage: Storage) -> None:
    """Check that object storage responds. Retry for `STARTUP_SECONDS`.

    Raises:
        StorageUnavailable: storage did not respond, even at the last attempt.
    """
    async for attempt in _retrying(StorageUnavailable):
        with attempt:
            await storage.check()


async def check_rates(rates: FleetRates) -> None:
    """Load the rate limits that were set at run time. Check that the limits and the settings do not conflict.

    Retry for `STARTUP_SECONDS`, because PostgreSQL may have become unavailable since the worker first
    connected.

    Raises:
        DatabaseUnavailable: the last attempt failed, too.
        SettingsError: the sum of the rates of single models leaves too little of the rate over all models.
    """
    async for attempt in _retrying(DatabaseUnavailable):
        with attempt:
            try:
                await rates.refresh()
            except RatesConflict as conflict:
                raise SettingsError(
                    "BATCHWRIGHT_REQUESTS_PER_SECOND and BATCHWRIGHT_MODELS do not fit the rates set at run "
                    f"time: {conflict}. `batchwright rates` lists them, `batchwright rates clear` "
                    "reverts one."
                ) from None


def _retrying(failure: type[Exception]) -> AsyncRetrying:
    return AsyncRetrying(
        retry=retry_if_exception_type(failure),
        stop=stop_after_delay(STARTUP_SECONDS),
        wait=wait_fixed(0.5),
        reraise=True,
    )
