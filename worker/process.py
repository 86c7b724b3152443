"""A worker's life: connect, poll, drain, leave."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.slices.progress import ProgressReporter
from batchwright.database.errors import DatabaseError, DatabaseUnavailable
from batchwright.database.pool import open_database
from batchwright.inference.backends import Registry
from batchwright.inference.client import InferenceClient
from batchwright.inference.opening import open_engine
from batchwright.inference.rates import FleetRates
from batchwright.rules.rates import RatesConflict
from batchwright.settings import Settings, SettingsError
from batchwright.storage.observed import Component
from batchwright.storage.opening import open_storage
from batchwright.telemetry.exposition import sdk_address
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.tracing import tracing
from batchwright.temporal import TemporalUnavailable
from worker.connecting import connected
from worker.drain import StopSignal
from worker.fleet import Fleet
from worker.following import FollowingWorker
from worker.health import HealthServer
from worker.rates import RateKeeper, keeper_of
from worker.roles import InferenceWorkers, Parts, Role, control_worker, io_worker, observer, slots

logger = logging.getLogger(__name__)
_STATS_SECONDS = 5.0
_EXIT_MARGIN_SECONDS = 15.0


async def serve(settings: Settings, roles: Sequence[Role], models: Sequence[str]) -> None:
    """Runs until a signal, then drains.

    Raises:
        TemporalUnavailable, DatabaseError, StorageUnavailable: something it needs is not there.
        OSError: the metrics port cannot be had.
        SettingsError: with the rates changed at run time, the settings leave nothing for some models.
    """
    stop = StopSignal()
    stop.install()
    async with _parts(settings) as (parts, health):
        await _check_rates(parts)
        address = await health.start(settings.metrics_host, settings.metrics_port)
        logger.info("the worker is up", extra={"roles": ",".join(roles), "health": address})
        try:
            await _poll(parts, roles, models, stop)
        finally:
            await health.stop()
    logger.info("the worker has drained")


@contextlib.asynccontextmanager
async def _parts(settings: Settings) -> AsyncGenerator[tuple[Parts, HealthServer]]:
    sdk = sdk_address()
    temporal, connection = await connected(settings, sdk)
    database = await open_database(settings, patience_seconds=settings.startup_seconds)
    client = InferenceClient(open_engine(settings), settings)
    metrics = Metrics(tenants=settings.metrics_tenants)
    try:
        async with (
            tracing(settings, "batchwright-worker", metrics),
            open_storage(settings, metrics, Component.WORKER) as storage,
        ):
            await storage.check()
            registry = Registry(settings, database.models, client, unavailable=DatabaseUnavailable)
            rates = FleetRates(
                settings, database.rates, lambda: registry.known, unavailable=DatabaseUnavailable
            )
            checks = {
                "postgresql": database.check,
                "temporal": lambda: _check(temporal),
                "storage": storage.check,
            }
            health = HealthServer(metrics, checks, sdk)
            parts = Parts(temporal, connection, database, storage, client, registry, rates, settings, metrics)
            yield parts, health
    finally:
        await client.aclose()
        await database.close()


async def _poll(parts: Parts, roles: Sequence[Role], models: Sequence[str], stop: StopSignal) -> None:
    progress = ProgressReporter(parts.database.progress)
    inference = InferenceWorkers(parts, progress)
    fleet = Fleet(lambda model: FollowingWorker(inference.make(model), parts.connection), models)
    keeper = keeper_of(parts.temporal, parts.rates, parts.metrics, parts.settings.model_refresh_seconds)
    made: list[Worker] = []
    if Role.CONTROL in roles:
        made.append(control_worker(parts))
    if Role.IO in roles:
        made.append(io_worker(parts))
    if Role.INFERENCE in roles:
        await keeper.keep()
        made.append(inference.dispatch())
    fixed = [FollowingWorker(worker, parts.connection) for worker in made]
    running = [asyncio.create_task(worker.run()) for worker in fixed]
    helpers = [
        asyncio.create_task(parts.connection.run()),
        asyncio.create_task(parts.registry.run()),
        asyncio.create_task(progress.run()),
        asyncio.create_task(_tell_stats(parts, inference)),
    ]
    if Role.INFERENCE in roles:
        followed = (_follow(parts.registry, fleet, keeper), fleet.failed(), keeper.run())
        helpers += [asyncio.create_task(helper) for helper in followed]
    else:
        helpers.append(asyncio.create_task(parts.rates.run()))
    parts.metrics.total_workers.set_function(lambda: slots(parts.settings, roles, len(fleet.models)))
    if Role.CONTROL in roles:
        helpers.append(asyncio.create_task(observer(parts).run()))
    watched = [*running, *helpers, stopped := asyncio.create_task(stop.wait())]
    done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
    for helper in (*helpers, stopped):
        helper.cancel()
    await asyncio.gather(*helpers, return_exceptions=True)
    await _drain(parts.settings, fixed, running, fleet)
    await progress.send()
    for task in done:
        task.result()  # a worker or helper that failed by itself ends the process with its error


async def _drain(
    settings: Settings, fixed: list[FollowingWorker], running: list[asyncio.Task[None]], fleet: Fleet
) -> None:
    """Bounded: a drain that hangs must not keep the process."""
    try:
        async with asyncio.timeout(settings.drain_seconds + _EXIT_MARGIN_SECONDS):
            await asyncio.gather(fleet.shutdown(), *(worker.shutdown() for worker in fixed))
            await asyncio.gather(*running, return_exceptions=True)
    except TimeoutError:
        logger.error("the drain took too long; what was running goes on elsewhere")


async def _follow(registry: Registry, fleet: Fleet, keeper: RateKeeper) -> None:
    """A queue has its limit before it is polled."""
    while True:
        models = await registry.changed()
        await keeper.keep()
        await fleet.follow(models)


async def _check_rates(parts: Parts) -> None:
    try:
        await parts.rates.refresh()
    except RatesConflict as conflict:
        raise SettingsError(
            f"BATCHWRIGHT_REQUESTS_PER_SECOND and BATCHWRIGHT_MODELS do not fit the rates set at run time: "
            f"{conflict}. `batchwright rates` lists them, `batchwright rates clear` reverts one."
        ) from None


async def _tell_stats(parts: Parts, inference: InferenceWorkers) -> None:
    """A row a worker, so that the fleet can be counted."""
    worker_id = f"{socket.gethostname()}:{os.getpid()}"
    while True:
        stats = {"in_flight": float(inference.tools.permits.used)}
        with contextlib.suppress(DatabaseUnavailable):  # said by others; the next beat tells all anyway
            await parts.database.workers.beat(worker_id, stats, datetime.now(UTC))
        await asyncio.sleep(_STATS_SECONDS)


async def _check(client: Client) -> None:
    try:
        await client.service_client.check_health(timeout=timedelta(seconds=3))
    except RPCError as error:
        raise TemporalUnavailable(error.message) from error


STARTUP_ERRORS = (TemporalUnavailable, DatabaseError, OSError)
