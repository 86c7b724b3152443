"""A worker's life: connect, poll, drain, leave."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.slices.progress import ProgressReporter
from batchwright.contracts import names
from batchwright.database.errors import DatabaseError, DatabaseUnavailable
from batchwright.database.pool import open_database
from batchwright.inference.backends import Registry
from batchwright.inference.clients import Clients
from batchwright.inference.hooks import Hooks
from batchwright.inference.rates import FleetRates
from batchwright.inference.senders import chat_executors
from batchwright.rules.polled import BEAT_SECONDS, polls, runs
from batchwright.settings import Settings
from batchwright.storage.observed import Component
from batchwright.storage.opening import open_storage
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.tracing import tracing
from batchwright.temporal import TemporalUnavailable, observed_runtime
from worker.awaited import Awaited
from worker.backends import GoneSeries, follow_backends, keep_to, pending_requests
from worker.connecting import check_rates, check_storage, connected
from worker.drain import StopSignal
from worker.fleet import Fleet
from worker.following import FollowingWorker
from worker.health import HealthServer
from worker.needs import Needs
from worker.rates import keeper_of
from worker.roles import InferenceWorkers, Parts, Role, control_worker, io_worker, observer, reasons, slots
from worker.serving import Serving
from worker.steps import show_slots

logger = logging.getLogger(__name__)
_EXIT_MARGIN_SECONDS = 15.0
_VITAL = frozenset({"postgresql", "storage"})  # nothing is heard of slices while Temporal is away


async def serve(settings: Settings, roles: Sequence[Role], models: Sequence[str]) -> None:
    """Runs until a signal, then drains. Once it was told to stop it fails no more: what goes wrong is logged.

    Raises:
        TemporalUnavailable, DatabaseError, StorageUnavailable: something it needs is not there.
        OSError: the metrics port cannot be had.
        SettingsError: with the rates changed at run time, the settings leave nothing for some models; or what
            they name cannot be imported.
    """
    chat_executors(settings)
    Hooks(settings)
    stop, up = StopSignal(), asyncio.Event()
    stop.install()
    life = asyncio.create_task(_live(settings, roles, models, stop, up))
    told = asyncio.create_task(stop.wait())
    await asyncio.wait([life, told], return_when=asyncio.FIRST_COMPLETED)
    if not up.is_set() and stop.is_requested:
        life.cancel()  # it still waits for something it needs
    told.cancel()
    try:
        await life
    except asyncio.CancelledError:
        logger.info("the worker was told to stop before it was up")
    except Exception:  # the edge of the process: it leaves with 0 all the same
        if not stop.is_requested:
            raise
        logger.exception("the worker failed while it stopped")


async def _live(
    settings: Settings, roles: Sequence[Role], models: Sequence[str], stop: StopSignal, up: asyncio.Event
) -> None:
    """Sets `up` when there may be something to drain."""
    async with _parts(settings) as (parts, needs, sdk):
        await check_rates(settings, parts.rates)
        health = HealthServer(parts.metrics, needs, sdk)
        address = await health.start(settings.metrics_host, settings.metrics_port)
        logger.info("the worker is up", extra={"roles": ",".join(roles), "health": address})
        up.set()
        try:
            await _poll(parts, needs, roles, models, stop)
        finally:
            await health.stop()
    logger.info("the worker has drained")


@contextlib.asynccontextmanager
async def _parts(settings: Settings) -> AsyncGenerator[tuple[Parts, Needs, str]]:
    runtime, sdk = observed_runtime()
    temporal, connection = await connected(settings, runtime)
    database = await open_database(settings, patience_seconds=settings.startup_seconds)
    clients = Clients(settings)
    metrics = Metrics(tenants=settings.metrics_tenants)
    try:
        async with (
            tracing(settings, "batchwright-worker", metrics),
            open_storage(settings, metrics, Component.WORKER) as storage,
        ):
            await check_storage(settings, storage)
            registry = Registry(
                settings,
                database.models,
                database.model_changes,
                clients,
                unavailable=DatabaseUnavailable,
            )
            follow_backends(registry, metrics)
            rates = FleetRates(
                settings, database.rates, lambda: registry.known, unavailable=DatabaseUnavailable
            )
            checks = {
                "postgresql": database.check,
                "temporal": lambda: _check(temporal),
                "storage": storage.check,
            }
            parts = Parts(temporal, connection, database, storage, registry, rates, settings, metrics)
            yield parts, Needs(checks, vital=_VITAL), sdk
    finally:
        await clients.aclose()
        await database.close()


async def _poll(
    parts: Parts, needs: Needs, roles: Sequence[Role], models: Sequence[str], stop: StopSignal
) -> None:
    progress = ProgressReporter(parts.database.progress)
    fleet = Fleet()
    made = _fixed(parts, roles, lambda: needs.failing)
    fixed = [FollowingWorker(worker, parts.connection) for worker in made]
    running = [asyncio.create_task(worker.run()) for worker in fixed]
    inference = InferenceWorkers(parts, progress, lambda: needs.missing)
    gone = GoneSeries(parts.metrics)
    parts.registry.on_look.append(partial(keep_to, parts.registry, gone, inference.tools.keep))
    helpers = [parts.connection.run(), parts.registry.run(), progress.run(), needs.run()]
    helpers.append(_tell_stats(parts, inference, lambda: [*_fixed_queues(roles), *fleet.queues]))
    if Role.INFERENCE in roles:
        helpers += _slices(parts, fleet, inference, models)
    else:
        helpers.append(parts.rates.run())
    if Role.CONTROL in roles:
        helpers += [observer(parts).run(), reasons(parts).run()]
    show_slots(parts.metrics, lambda: slots(parts.settings, roles, fleet.queues))
    helping = [asyncio.create_task(helper) for helper in (*helpers, stop.wait())]
    done, _ = await asyncio.wait([*running, *helping], return_when=asyncio.FIRST_COMPLETED)
    for helper in helping:
        helper.cancel()
    await asyncio.gather(*helping, return_exceptions=True)
    await _drain(parts.settings, fixed, running, fleet)
    await progress.send()
    await inference.permissions.leave()
    for task in done:
        task.result()  # a worker or helper that failed by itself ends the process with its error


def _fixed(parts: Parts, roles: Sequence[Role], failing: Callable[[], str]) -> list[Worker]:
    """The workers of queues that are polled from the start to the end."""
    made = {Role.CONTROL: control_worker, Role.IO: partial(io_worker, failing=failing)}
    return [make(parts) for role, make in made.items() if role in roles]


def _fixed_queues(roles: Sequence[Role]) -> list[str]:
    queues = {Role.CONTROL: names.CONTROL_QUEUE, Role.IO: names.IO_QUEUE}
    return [queue for role, queue in queues.items() if role in roles]


def _slices(
    parts: Parts, fleet: Fleet, inference: InferenceWorkers, models: Sequence[str]
) -> list[Coroutine[None, None, None]]:
    """What runs beside the workers of slices."""
    keeper = keeper_of(parts.temporal, parts.rates, parts.metrics, parts.settings.model_refresh_seconds)
    awaited = Awaited(parts.registry, parts.database.fleet.lines_left)
    serving = Serving(fleet, inference.pollers, awaited=awaited, keeper=keeper, only=models)
    followed = [inference.permissions.run(), inference.callbacks.run()]
    return [*followed, serving.run(), fleet.failed(), keeper.run()]


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


async def _tell_stats(parts: Parts, inference: InferenceWorkers, queues: Callable[[], list[str]]) -> None:
    """A row a worker, so that the fleet can be counted."""
    worker_id, started_at = f"{socket.gethostname()}:{os.getpid()}", datetime.now(UTC)
    while True:
        stats = {
            "in_flight": float(inference.tools.permits.used),
            **polls(queues()),
            **runs(inference.running),
        }
        with contextlib.suppress(DatabaseUnavailable):  # said by others; the next beat tells all anyway
            await parts.database.workers.beat(
                worker_id,
                stats,
                datetime.now(UTC),
                parts.registry.fingerprint,
                traffic=inference.tools.traffic.told(pending_requests(parts.registry)),
                started_at=started_at,
            )
        await asyncio.sleep(BEAT_SECONDS)


async def _check(client: Client) -> None:
    try:
        await client.service_client.check_health(timeout=timedelta(seconds=3))
    except RPCError as error:
        raise TemporalUnavailable(error.message) from error


STARTUP_ERRORS = (TemporalUnavailable, DatabaseError, OSError)
