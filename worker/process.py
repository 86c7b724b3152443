"""Run a worker process: connect, poll task queues, finish or return current work, exit."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from batchwright.activities.services.progress_writer import ProgressReporter
from batchwright.background import BackgroundTasks
from batchwright.contracts import temporal_names
from batchwright.database.errors import DatabaseError, DatabaseUnavailable
from batchwright.database.postgres import open_database
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.hooks import load_hooks
from batchwright.inference.limits.fleet_rate_limits import FleetRates
from batchwright.inference.registry.backend_registry import BackendRegistry
from batchwright.inference.sender_choice import load_chat_executors
from batchwright.process_name import process_name
from batchwright.rules.ids import safe_name
from batchwright.rules.worker_stats import (
    ANY_MODEL_QUEUE,
    HEARTBEAT_SECONDS,
    polled_queue_stats,
    running_slice_stats,
)
from batchwright.settings import Settings
from batchwright.settings_fingerprint import settings_fingerprint
from batchwright.storage.factory import open_storage
from batchwright.storage.observed import StorageComponent
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.tracing import open_tracing
from batchwright.temporal import TemporalUnavailable, observed_runtime
from batchwright.webhooks.sender import WebhookSender
from batchwright.worker.backend_metrics import (
    StaleSeriesRemover,
    forget_removed,
    open_circuits,
    outstanding_requests,
    register_backend_metrics,
)
from batchwright.worker.dependency_checks import (
    STARTUP_SECONDS,
    DependencyMonitor,
    check_rates,
    check_storage,
    connect_temporal,
)
from batchwright.worker.health import HealthServer
from batchwright.worker.interceptors.activity_metrics import register_slot_gauges
from batchwright.worker.limit_share_updater import LimitShareUpdater
from batchwright.worker.pollers import PollerSupervisor, QueuePollers, ReconnectingWorker, RequiredModels
from batchwright.worker.roles import Role, count_slots
from batchwright.worker.shutdown import ShutdownSignal
from batchwright.worker.task_queue_rate_limits import SYNC_SECONDS, RateLimitSync, TemporalRateLimits
from batchwright.worker.wiring import (
    InferenceWorkers,
    WorkerResources,
    build_control_worker,
    build_fleet_metrics,
    build_io_worker,
    build_output_copy_worker,
    build_waiting_reason_monitor,
    build_webhook_dispatcher,
    build_webhook_worker,
)

logger = logging.getLogger(__name__)
STARTUP_ERRORS = (TemporalUnavailable, DatabaseError, OSError)
_EXIT_MARGIN_SECONDS = 15.0
# Temporal is not in the list, because no slice arrives while it is unavailable.
_REQUIRED_FOR_SLICES = frozenset({"postgresql", "storage"})


async def serve(settings: Settings, roles: Sequence[Role], models: Sequence[str]) -> None:
    """Run the worker until the process receives a stop signal, then drain it: finish or return current work.

    After a stop signal, errors are logged and not raised. If a poller fails without a stop signal, the worker
    is drained first. Then the error of the poller is raised.

    Raises:
        TemporalUnavailable, DatabaseError, StorageUnavailable: a dependency is unavailable.
        OSError: the metrics port cannot be bound.
        SettingsError: the settings name an object that cannot be imported, or the sum of the rates of single
            models leaves too little of the rate over all models.
    """
    load_chat_executors(settings)
    load_hooks(settings)
    shutdown, is_up = ShutdownSignal(), asyncio.Event()
    shutdown.install()
    running = asyncio.create_task(_run(settings, roles, models, shutdown, is_up))
    waiting = asyncio.create_task(shutdown.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not is_up.is_set() and shutdown.is_requested:
        running.cancel()  # it is still waiting for a dependency
    waiting.cancel()
    try:
        await running
    except asyncio.CancelledError:
        logger.info("the worker was stopped before it was up")
    except Exception:  # any error: after a signal, the process exits with 0 nevertheless
        if not shutdown.is_requested:
            raise
        logger.exception("the worker failed while it stopped")


@dataclass(frozen=True)
class _OpenWorker:
    resources: WorkerResources
    dependencies: DependencyMonitor
    background: BackgroundTasks
    sdk_address: str  # host:port of the Temporal SDK's metrics


async def _run(
    settings: Settings,
    roles: Sequence[Role],
    models: Sequence[str],
    shutdown: ShutdownSignal,
    is_up: asyncio.Event,
) -> None:
    """Connect to the dependencies, serve health and metrics, and poll until `shutdown` is requested.

    `is_up` is set just before polling starts. After that, the caller must not cancel this task: current work
    must first be finished or returned.
    """
    async with _open_worker(settings) as worker:
        resources = worker.resources
        await check_rates(resources.rates)
        health = HealthServer(resources.metrics, worker.dependencies, worker.sdk_address)
        address = await health.start(settings.metrics_host, settings.metrics_port)
        logger.info("the worker is up", extra={"roles": ",".join(roles), "health": address})
        is_up.set()
        try:
            await _poll(worker, roles, models, shutdown)
        finally:
            await health.stop()
    logger.info("the worker has drained")


@contextlib.asynccontextmanager
async def _open_worker(settings: Settings) -> AsyncGenerator[_OpenWorker]:
    runtime, sdk_address = observed_runtime()
    temporal, connection = await connect_temporal(settings, runtime)
    database = await open_database(settings, patience_seconds=STARTUP_SECONDS)
    clients = ClientPool(settings)
    metrics = Metrics(tenants=settings.metrics_tenants)
    metrics.settings_info.labels(settings_fingerprint(settings)).set(1)
    try:
        async with (
            open_tracing(settings, "batchwright-worker", metrics),
            open_storage(settings, metrics, StorageComponent.WORKER) as storage,
        ):
            await check_storage(storage)
            registry = BackendRegistry(
                settings,
                database.models,
                database.model_changes,
                clients,
                unavailable=DatabaseUnavailable,
            )
            register_backend_metrics(registry, metrics)
            rates = FleetRates(
                settings, database.rates, lambda: registry.known_models, unavailable=DatabaseUnavailable
            )
            failures = metrics.background_failures
            background = BackgroundTasks(lambda task, _: failures.labels(task).inc(), started=failures.labels)
            checks = {
                "background_tasks": background.check,
                "postgresql": database.check,
                "temporal": lambda: _check_temporal(temporal),
                "storage": storage.check,
            }
            resources = WorkerResources(
                temporal, connection, database, storage, registry, rates, settings, metrics
            )
            dependencies = DependencyMonitor(checks, required=_REQUIRED_FOR_SLICES)
            try:
                yield _OpenWorker(resources, dependencies, background, sdk_address)
            finally:
                await background.stop()
    finally:
        await clients.aclose()
        await database.close()


async def _poll(
    worker: _OpenWorker, roles: Sequence[Role], models: Sequence[str], shutdown: ShutdownSignal
) -> None:
    """Poll the task queues until a stop signal arrives or a poller fails.

    Then stop all pollers after their current work. If a poller failed, raise its exception at the end.
    """
    resources, background, dependencies = worker.resources, worker.background, worker.dependencies
    progress = ProgressReporter(resources.database.progress)
    pollers = QueuePollers()
    sender = WebhookSender(resources.settings.webhook_networks)
    fixed = [
        ReconnectingWorker(fixed_worker, resources.connection)
        for fixed_worker in _build_fixed_workers(resources, roles, sender, lambda: dependencies.failing)
    ]
    running = [asyncio.create_task(fixed_worker.run()) for fixed_worker in fixed]
    inference = InferenceWorkers(resources, progress, lambda: dependencies.blocking)
    shares = _follow_registry(resources, inference)
    background.start("temporal_connection", resources.connection.run)
    background.start("registry", resources.registry.run)
    background.start("limit_share_updater", shares.run)
    background.start("progress", progress.run)
    background.start("dependencies", dependencies.run)
    background.start(
        "worker_stats",
        lambda: _publish_stats(
            resources, inference, lambda: [*_polled_queues(roles, models), *pollers.queues]
        ),
    )
    if Role.INFERENCE in roles:
        _start_inference(worker, pollers, inference, models)
    else:
        background.start("rates", resources.rates.run)
    if Role.CONTROL in roles:
        background.start("fleet_metrics", build_fleet_metrics(resources).run)
        background.start("waiting_reasons", build_waiting_reason_monitor(resources).run)
        background.start("webhooks", build_webhook_dispatcher(resources).run)
    register_slot_gauges(resources.metrics, lambda: count_slots(resources.settings, roles, pollers.queues))
    ends = [asyncio.create_task(end) for end in (pollers.wait_for_failure(), shutdown.wait())]
    done, _ = await asyncio.wait([*running, *ends], return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)
    await background.stop()
    await _drain(resources.settings, fixed, running, pollers)
    await sender.close()
    await progress.send()
    await inference.permissions.close()
    for task in done:
        task.result()  # raises the error of a poller that failed, which ends the process


def _follow_registry(resources: WorkerResources, inference: InferenceWorkers) -> LimitShareUpdater:
    """Make this process react to changes of the model registry.

    After each change, the state and metrics of removed models and backends are deleted, and the fleet's
    limits are divided again. The caller must call `run` of the returned `LimitShareUpdater`.
    """
    stale = StaleSeriesRemover(resources.metrics)
    shares = LimitShareUpdater(
        process_name(),
        resources.database.workers,
        resources.registry,
        resources.rates.queue_of,
        inference.context.set_fleet_shares,
    )
    inference.context.count_workers = shares.count_workers
    inference.context.is_used_up_by_interactive = shares.is_used_up_by_interactive
    resources.registry.on_refresh += [
        partial(forget_removed, resources.registry, resources.metrics, stale, inference.context.retain),
        shares.apply,
    ]
    shares.apply()
    return shares


def _build_fixed_workers(
    resources: WorkerResources, roles: Sequence[Role], sender: WebhookSender, failing: Callable[[], str]
) -> list[Worker]:
    """Build the Temporal workers for the task queues that the process polls as long as it runs.

    The role `control` polls the queues for control and webhooks. The role `io` polls the IO queue and the
    queue for copies of output files.

    Args:
        failing: returns the required dependencies that fail now, with their errors; empty if none fails.
    """
    workers: list[Worker] = []
    if Role.CONTROL in roles:
        workers += [build_control_worker(resources), build_webhook_worker(resources, sender)]
    if Role.IO in roles:
        workers += [build_io_worker(resources, failing), build_output_copy_worker(resources)]
    return workers


def _polled_queues(roles: Sequence[Role], models: Sequence[str]) -> list[str]:
    """Return the task queues that the process may poll, even if no batch needs them now.

    If `models` is empty, the process serves all models, and ANY_MODEL_QUEUE stands for their queues.
    """
    of_models = [temporal_names.inference_queue(safe_name(model)) for model in models] or [ANY_MODEL_QUEUE]
    queues = {
        Role.CONTROL: [temporal_names.CONTROL_QUEUE, temporal_names.WEBHOOK_QUEUE],
        Role.IO: [temporal_names.IO_QUEUE, temporal_names.OUTPUT_QUEUE],
        Role.INFERENCE: of_models,
    }
    return [queue for role, of_role in queues.items() if role in roles for queue in of_role]


def _start_inference(
    worker: _OpenWorker, pollers: QueuePollers, inference: InferenceWorkers, models: Sequence[str]
) -> None:
    """Start the background tasks that are needed to send lines of batches.

    They read permissions, limits of tenants and arrived callbacks from the database. They also start and stop
    the pollers of the models' queues, and set the rate limits of these queues.
    """
    resources, background, settings = worker.resources, worker.background, worker.resources.settings
    limiter = RateLimitSync(
        resources.rates,
        TemporalRateLimits(resources.temporal),
        resources.metrics,
        every_seconds=SYNC_SECONDS,
    )
    fleet, demand = resources.database.fleet, inference.context.demand

    async def required_models() -> Collection[str]:
        tenants = await fleet.awaited_models(datetime.now(UTC))
        demand.set_waiting(tenants, [model for model in tenants if resources.rates.queue_of(model)])
        return tenants

    supervisor = PollerSupervisor(
        pollers,
        inference.poller_factories,
        required=RequiredModels(required_models),
        limiter=limiter,
        registry=resources.registry,
    )
    poll = partial(
        supervisor.run,
        only=models,
        limit=settings.max_polled_models,
        until_ready=inference.tenant_settings.wait_until_read,
    )
    background.start("permissions", inference.permissions.run)
    background.start("tenant_shares", inference.tenant_settings.run)
    background.start("callbacks", inference.callbacks.run)
    background.start("pollers", poll)
    background.start("rate_limits", limiter.run)


async def _drain(
    settings: Settings,
    fixed: list[ReconnectingWorker],
    running: list[asyncio.Task[None]],
    pollers: QueuePollers,
) -> None:
    """Stop all pollers after their current work.

    If the work takes too long, stop waiting, so that the process can end.
    """
    try:
        async with asyncio.timeout(settings.drain_seconds + _EXIT_MARGIN_SECONDS):
            await asyncio.gather(pollers.shutdown(), *(worker.shutdown() for worker in fixed))
            await asyncio.gather(*running, return_exceptions=True)
    except TimeoutError:
        logger.error("the drain took too long; other workers continue the remaining slices")


async def _publish_stats(
    resources: WorkerResources, inference: InferenceWorkers, queues: Callable[[], list[str]]
) -> None:
    """Write this worker's statistics to its database row every `HEARTBEAT_SECONDS`, until cancelled.

    Other processes read these rows to learn which workers are alive and what they do.

    Args:
        queues: returns the task queues that this process polls.
    """
    started_at = datetime.now(UTC)
    while True:
        stats = {
            "in_flight": float(inference.context.permits.used),
            **polled_queue_stats(queues()),
            **running_slice_stats(inference.running),
        }
        with contextlib.suppress(
            DatabaseUnavailable
        ):  # DependencyMonitor reports it; the next row has all totals
            await resources.database.workers.record_heartbeat(
                process_name(),
                stats,
                resources.registry.fingerprint,
                traffic=inference.context.traffic.snapshot(
                    outstanding_requests(resources.registry), open_circuits(resources.registry)
                ),
                started_at=started_at,
            )
        await asyncio.sleep(HEARTBEAT_SECONDS)


async def _check_temporal(client: Client) -> None:
    try:
        await client.service_client.check_health(timeout=timedelta(seconds=3))
    except RPCError as error:
        raise TemporalUnavailable(error.message) from error
