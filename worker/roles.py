"""The wiring: which workers a process runs, and what they are made of. Nothing else builds real parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial

from temporalio.client import Client
from temporalio.worker import Worker

from activities.audit.runs import TemporalRuns
from activities.auditing import Auditing
from activities.execution import Execution
from activities.finalization import Finalization
from activities.ingestion import Ingestion
from activities.lifecycle import Lifecycle
from activities.retention import Retention
from activities.slices.budgets import TokenBudgets
from activities.slices.callbacks import CallbackWatch
from activities.slices.permissions import KnownPermissions
from activities.slices.progress import ProgressReporter
from activities.slices.tools import for_temporal
from activities.slices.waiting import WaitingSignals, temporal_tell
from batchwright.contracts import names
from batchwright.database.base import DatabaseLike
from batchwright.inference.backends import Registry
from batchwright.inference.rates import FleetRates
from batchwright.rules.ids import safe_name
from batchwright.settings import Settings
from batchwright.storage.base import Storage
from batchwright.storage.observed import Component, seen_as
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal import Connection
from worker.broken_runs import BrokenRuns, ServerRuns
from worker.budgets import BudgetWatch
from worker.fleet import Make
from worker.following import FollowingWorker
from worker.observer import Observer
from worker.outlook import Outlook
from worker.queues import QueueWatch, ServerQueues
from worker.reasons import Reasons
from worker.retained import Retained
from worker.sandbox import sandbox
from worker.steps import StepCounter
from worker.versioning import deployment
from worker.waits import WaitTeller
from workflows.audit import AuditWorkflow
from workflows.batch import BatchWorkflow
from workflows.model_run import ModelRunWorkflow
from workflows.retention import RetentionWorkflow

# Cancel and pause arrive with a heartbeat; the SDK's default would hold them back for up to a minute.
_HEARTBEATS = timedelta(seconds=1)
# Slices hear them from beats of their own; by the SDK's it only sees that they live.
_HEARTBEATS_BESIDE = timedelta(seconds=15)
WORKFLOWS = (BatchWorkflow, ModelRunWorkflow, RetentionWorkflow, AuditWorkflow)


class Role(StrEnum):
    CONTROL = "control"  # workflows, ends without files
    IO = "io"  # ingestion, finalization, retention, audits
    INFERENCE = "inference"  # slices


@dataclass(frozen=True)
class Parts:
    """What the activities of a process are built from."""

    temporal: Client
    connection: Connection  # under `temporal`
    database: DatabaseLike
    storage: Storage
    registry: Registry
    rates: FleetRates
    settings: Settings
    metrics: Metrics


def control_worker(parts: Parts) -> Worker:
    kept = timedelta(days=parts.settings.partial_file_retention_days)
    lifecycle = Lifecycle(parts.database, parts.metrics, parts.storage, kept)
    return Worker(
        parts.temporal,
        task_queue=names.CONTROL_QUEUE,
        workflows=WORKFLOWS,
        workflow_runner=sandbox(),
        activities=[lifecycle.end],
        graceful_shutdown_timeout=_drain(parts.settings),
        deployment_config=deployment(parts.settings),
        interceptors=[StepCounter(parts.metrics)],
    )


def io_worker(parts: Parts, failing: Callable[[], str]) -> Worker:
    """`failing` says what the process cannot reach at the moment; empty: nothing."""
    shared = (parts.settings, parts.metrics)
    ingestion = Ingestion(parts.database, parts.storage, parts.registry, *shared, parts.rates)
    finalization = Finalization(parts.database, parts.storage, *shared)
    collector = seen_as(parts.storage, Component.COLLECTOR)
    retention = Retention(parts.database, collector, *shared)
    auditing = Auditing(parts.database, collector, TemporalRuns(parts.temporal), parts.settings)
    waiting = WaitingSignals(temporal_tell(parts.temporal), parts.database.waiting)
    return Worker(
        parts.temporal,
        task_queue=names.IO_QUEUE,
        activities=[ingestion.ingest, finalization.finalize, retention.sweep, auditing.audit],
        max_concurrent_activities=parts.settings.io_slots,
        max_heartbeat_throttle_interval=_HEARTBEATS,
        default_heartbeat_throttle_interval=_HEARTBEATS,
        graceful_shutdown_timeout=_drain(parts.settings),
        deployment_config=deployment(parts.settings),
        interceptors=[StepCounter(parts.metrics), WaitTeller(waiting, failing)],
    )


class InferenceWorkers:
    """Makes the workers of slice queues; permits, circuits and bytes are shared by all of a process."""

    def __init__(self, parts: Parts, progress: ProgressReporter, missing: Callable[[], str]) -> None:
        """`missing` says what slices need and the worker cannot reach; empty: nothing."""
        self._parts = parts
        quotas = parts.database.quotas
        budgets = TokenBudgets(quotas, parts.settings.quotas.tokens_per_day)
        window = timedelta(seconds=parts.settings.max_window_seconds)
        self.permissions = KnownPermissions(quotas, budgets, window)
        self.callbacks = CallbackWatch(parts.database.callbacks, parts.settings)
        self.tools = for_temporal(
            storage=parts.storage,
            registry=parts.registry,
            progress=progress,
            metrics=parts.metrics,
            settings=parts.settings,
            temporal=parts.temporal,
            rates=parts.rates,
            permissions=self.permissions,
            callbacks=self.callbacks,
            is_cancelled=self._is_cancelled,
            missing=missing,
            waiting=parts.database.waiting,
        )
        self._execution = Execution(self.tools)

    @property
    def running(self) -> Mapping[tuple[str, str], int]:
        """Slices that run, by batch and model."""
        return self._execution.running

    def pollers(self, models: frozenset[str]) -> dict[str, Make]:
        """By task queue: one of each model, and the one that models without a rate of their own share."""
        settings = self._parts.settings
        queues = {names.inference_queue(safe_name(model)): settings.slots_per_model for model in models}
        queues[names.DISPATCH_QUEUE] = settings.dispatch_slots
        return {queue: partial(self._worker, queue, slots) for queue, slots in queues.items()}

    async def _is_cancelled(self, tenant: str, batch_id: str) -> bool:
        row = await self._parts.database.batches.get(tenant, batch_id)
        return row is not None and row.cancel_requested_at is not None

    def _worker(self, queue: str, slots: int) -> FollowingWorker:
        settings = self._parts.settings
        worker = Worker(
            self._parts.temporal,
            task_queue=queue,
            activities=[self._execution.run_slice],
            max_concurrent_activities=slots,
            max_heartbeat_throttle_interval=_HEARTBEATS_BESIDE,
            default_heartbeat_throttle_interval=_HEARTBEATS_BESIDE,
            graceful_shutdown_timeout=_drain(settings),
            deployment_config=deployment(settings),
            interceptors=[StepCounter(self._parts.metrics), WaitTeller(self.tools.waiting)],
        )
        return FollowingWorker(worker, self._parts.connection)


def observer(parts: Parts) -> Observer:
    """Of a control worker's process."""
    registry, metrics = parts.registry, parts.metrics
    queues = QueueWatch(ServerQueues(parts.temporal), lambda: registry.known, metrics)
    outlook = Outlook(parts.database.fleet, metrics)
    runs = BrokenRuns(ServerRuns(parts.temporal), outlook, metrics)
    retained = Retained(parts.database.retention, parts.database.audits, metrics)
    budgets = BudgetWatch(parts.database.quotas, parts.settings.quotas.tokens_per_day, metrics)
    return Observer(
        outlook, queues, runs, metrics, retained, budgets, every_seconds=parts.settings.observe_seconds
    )


def reasons(parts: Parts) -> Reasons:
    """Of a control worker's process."""
    rates = parts.rates
    queues = ServerQueues(parts.temporal)
    return Reasons(parts.database, queues, rates.pacing_of, rates.queue_of, temporal_tell(parts.temporal))


def slots(settings: Settings, roles: Sequence[Role], queues: Sequence[str]) -> int:
    """Ingestions, finalizations and slices at once of a process that polls these slice queues."""
    io = settings.io_slots if Role.IO in roles else 0
    shared = names.DISPATCH_QUEUE in queues
    return io + settings.dispatch_slots * shared + settings.slots_per_model * (len(queues) - shared)


def roles_of(text: str) -> Sequence[Role]:
    """`control,io,inference` or some of them. Raises ValueError naming the wrong one."""
    chosen = [part.strip() for part in text.split(",") if part.strip()]
    for name in chosen:
        if name not in list(Role):
            raise ValueError(f"--roles: {name!r} is no role; there are {', '.join(Role)}")
    if not chosen:
        raise ValueError(f"--roles names no role; there are {', '.join(Role)}")
    return [Role(name) for name in dict.fromkeys(chosen)]


def _drain(settings: Settings) -> timedelta:
    return timedelta(seconds=settings.drain_seconds)
