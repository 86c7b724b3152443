"""Build the Temporal workers of each role, and the objects that their activities share.

`worker.process` opens the connections that these objects use.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Worker, WorkerDeploymentConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from batchwright.activities.batch_end.end_without_files import Lifecycle
from batchwright.activities.batch_schedules.activity import BatchScheduling
from batchwright.activities.consistency.activity import ConsistencyChecking
from batchwright.activities.consistency.workflow_runs import TemporalBatchRunSource
from batchwright.activities.execution.activity import Execution
from batchwright.activities.execution.slice_state.lease import temporal_heartbeat
from batchwright.activities.execution.worker_context import WorkerContext
from batchwright.activities.finalization.activity import Finalization
from batchwright.activities.ingestion.activity import Ingestion
from batchwright.activities.ingestion.served_models import ServedModels
from batchwright.activities.output_copies.activity import OutputCopies
from batchwright.activities.retention.activity import Retention
from batchwright.activities.services.backend_job_callbacks import CallbackWatch
from batchwright.activities.services.batch_cost_cap import BatchCosts
from batchwright.activities.services.daily_budgets import DailyBudgets
from batchwright.activities.services.holds_caps_and_weights import StoredTenantSettings
from batchwright.activities.services.progress_writer import ProgressReporter
from batchwright.activities.services.send_authorization import CachedPermissions
from batchwright.activities.services.waiting_reason_publisher import (
    WaitingReasonPublisher,
    temporal_reason_signal,
)
from batchwright.activities.webhooks.activity import WebhookDeliveries
from batchwright.contracts import temporal_names
from batchwright.database.database import Database
from batchwright.inference.limits.fleet_rate_limits import FleetRates
from batchwright.inference.registry.backend_registry import BackendRegistry
from batchwright.process_name import process_name
from batchwright.rules.deadline import MAX_START_DELAY
from batchwright.rules.ids import safe_name
from batchwright.rules.limits.rate_allocation import ALL_MODELS
from batchwright.settings import Settings, SettingsError
from batchwright.storage.base import Storage
from batchwright.storage.observed import StorageComponent, for_component
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal import TemporalConnection
from batchwright.temporal.batch_schedules import TemporalBatchSchedules
from batchwright.temporal.codec import load_keys
from batchwright.temporal.stored_secrets import StoredSecrets
from batchwright.temporal.task_queues import describe_queue
from batchwright.temporal.workflow_starts import start_delivery
from batchwright.webhooks.sender import WebhookSender
from batchwright.worker.control_tasks.budget_metrics import BudgetCollector
from batchwright.worker.control_tasks.fleet_metrics import (
    FleetMetricsCollector,
    LiveBatchCollector,
    LostRunCollector,
    MaintenanceCollector,
    QueueCollector,
    TemporalEndedRuns,
)
from batchwright.worker.control_tasks.fleet_waiting_reasons import WaitingReasonMonitor
from batchwright.worker.control_tasks.forecast_publisher import ForecastPublisher, temporal_forecast_signal
from batchwright.worker.control_tasks.webhook_dispatcher import WebhookDispatcher
from batchwright.worker.interceptors.activity_metrics import ActivityMetricsInterceptor
from batchwright.worker.interceptors.failure_waiting_reasons import WaitingReasonInterceptor
from batchwright.worker.interceptors.step_quarantine import StepQuarantineInterceptor
from batchwright.worker.pollers import PollerFactory, ReconnectingWorker
from batchwright.worker.slice_slots import SliceSlots
from batchwright.workflows.batch import BatchWorkflow
from batchwright.workflows.consistency_check import ConsistencyCheckWorkflow
from batchwright.workflows.model_run import ModelRunWorkflow
from batchwright.workflows.output_copy import OutputCopyWorkflow
from batchwright.workflows.retention import RetentionWorkflow
from batchwright.workflows.scheduled_batch import ScheduledBatchWorkflow
from batchwright.workflows.webhook_delivery import WebhookDeliveryWorkflow

# Cancel and pause requests arrive with heartbeats, which the SDK would delay by up to a minute by default.
_HEARTBEAT_INTERVAL = timedelta(seconds=1)
_OBSERVE_SECONDS = 15.0  # pause between two refreshes of the fleet metrics
# A workflow task waits this long for the worker that has the workflow in its cache, even if the worker was
# killed. Then any other worker gets the task. The SDK's default is 10 s.
_CACHED_WORKFLOW_WAIT = timedelta(seconds=5)
# Slices get cancel and pause requests with their own heartbeats. The SDK's only show that slices are alive.
_SLICE_HEARTBEAT_INTERVAL = timedelta(seconds=15)
WORKFLOWS = (
    BatchWorkflow,
    ModelRunWorkflow,
    RetentionWorkflow,
    ConsistencyCheckWorkflow,
    WebhookDeliveryWorkflow,
    ScheduledBatchWorkflow,
    OutputCopyWorkflow,
)
_WEBHOOK_SLOTS = 50  # deliveries mostly wait for endpoints
_OUTPUT_COPY_SLOTS = 4  # each holds up to three parts of a file, of 8 MiB or more


@dataclass(frozen=True)
class WorkerResources:
    """The connections, settings and metrics of one worker process, which all its activities share."""

    temporal: Client
    connection: TemporalConnection  # the connection of `temporal`
    database: Database
    storage: Storage
    registry: BackendRegistry
    rates: FleetRates
    settings: Settings
    metrics: Metrics
    # Held by the work that runs in quarantine: a line or a step that may crash the process.
    quarantine_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


def build_control_worker(resources: WorkerResources) -> Worker:
    kept = timedelta(days=resources.settings.partial_file_retention_days)
    database, settings, metrics = resources.database, resources.settings, resources.metrics
    lifecycle = Lifecycle(database, metrics, resources.storage, kept)
    schedules = TemporalBatchSchedules(resources.temporal, settings)
    scheduling = BatchScheduling(database, settings, metrics, schedules)
    copies = OutputCopies(database, resources.storage, settings, metrics)
    return Worker(
        resources.temporal,
        task_queue=temporal_names.CONTROL_QUEUE,
        workflows=WORKFLOWS,
        workflow_runner=workflow_sandbox(),
        activities=[
            lifecycle.insert_row,
            lifecycle.end,
            scheduling.admit_scheduled_batch,
            scheduling.record_scheduled_run,
            scheduling.record_scheduled_cancel,
            scheduling.end_of_scheduled_batch,
            copies.give_up_output_copy,
        ],
        sticky_queue_schedule_to_start_timeout=_CACHED_WORKFLOW_WAIT,
        graceful_shutdown_timeout=_drain_timeout(resources.settings),
        deployment_config=deployment_config(resources.settings),
        interceptors=[ActivityMetricsInterceptor(resources.metrics)],
    )


def build_webhook_worker(resources: WorkerResources, sender: WebhookSender) -> Worker:
    """Build the Temporal worker that delivers webhooks.

    It has its own task queue, and its own slots (places for running activities), so that slow endpoints delay
    no other work.
    """
    secrets = StoredSecrets(load_keys(resources.settings))
    deliveries = WebhookDeliveries(resources.database, sender, secrets, resources.metrics)
    return Worker(
        resources.temporal,
        task_queue=temporal_names.WEBHOOK_QUEUE,
        activities=[deliveries.deliver_webhook],
        max_concurrent_activities=_WEBHOOK_SLOTS,
        max_concurrent_activity_task_polls=2,
        graceful_shutdown_timeout=_drain_timeout(resources.settings),
        deployment_config=deployment_config(resources.settings),
        interceptors=[ActivityMetricsInterceptor(resources.metrics)],
    )


def build_output_copy_worker(resources: WorkerResources) -> Worker:
    """Build the Temporal worker that copies files of batches to other buckets.

    It has its own task queue, and its own slots (places for running activities), so that slow buckets delay
    no ingestion and no finalization.
    """
    settings, metrics = resources.settings, resources.metrics
    copies = OutputCopies(resources.database, resources.storage, settings, metrics)
    return Worker(
        resources.temporal,
        task_queue=temporal_names.OUTPUT_QUEUE,
        activities=[copies.copy_output],
        max_concurrent_activities=_OUTPUT_COPY_SLOTS,
        max_concurrent_activity_task_polls=1,
        graceful_shutdown_timeout=_drain_timeout(settings),
        deployment_config=deployment_config(settings),
        interceptors=[
            ActivityMetricsInterceptor(metrics),
            StepQuarantineInterceptor(resources.quarantine_lock),
        ],
    )


def build_webhook_dispatcher(resources: WorkerResources) -> WebhookDispatcher:
    start = partial(start_delivery, resources.temporal)
    return WebhookDispatcher(resources.database.webhook_deliveries, start, resources.metrics)


def build_io_worker(resources: WorkerResources, failing: Callable[[], str]) -> Worker:
    """Build the Temporal worker that runs ingestion, finalization, retention and consistency checks.

    Args:
        failing: returns, as text, the required dependencies that fail now, and their errors. The text is
            empty if none fails.
    """
    database, storage, settings, metrics = (
        resources.database,
        resources.storage,
        resources.settings,
        resources.metrics,
    )
    models = ServedModels(resources.registry, resources.rates)
    ingestion = Ingestion(database, storage, models, settings, metrics)
    finalization = Finalization(database, storage, settings, metrics, resources.registry)
    collector = for_component(storage, StorageComponent.COLLECTOR)
    retention = Retention(database, collector, settings, metrics)
    consistency = ConsistencyChecking(
        database, collector, TemporalBatchRunSource(resources.temporal), settings
    )
    waiting = WaitingReasonPublisher(temporal_reason_signal(resources.temporal), database.waiting)
    return Worker(
        resources.temporal,
        task_queue=temporal_names.IO_QUEUE,
        activities=[ingestion.ingest, finalization.finalize, retention.sweep, consistency.check_consistency],
        max_concurrent_activities=settings.io_slots,
        max_heartbeat_throttle_interval=_HEARTBEAT_INTERVAL,
        default_heartbeat_throttle_interval=_HEARTBEAT_INTERVAL,
        graceful_shutdown_timeout=_drain_timeout(settings),
        deployment_config=deployment_config(settings),
        interceptors=[
            ActivityMetricsInterceptor(metrics),
            WaitingReasonInterceptor(waiting, failing),
            StepQuarantineInterceptor(resources.quarantine_lock),
        ],
    )


class InferenceWorkers:
    """The factory of the Temporal workers that send lines of batches, one worker per task queue.

    All of them share the request limits, the circuit breakers and the memory budget of this process.
    """

    def __init__(
        self, resources: WorkerResources, progress: ProgressReporter, blocking: Callable[[], str]
    ) -> None:
        """Create the objects that all Temporal workers of the process share.

        Args:
            resources: connections and stores of the process.
            progress: receives the workers' counts of finished lines.
            blocking: returns the required dependencies that are unavailable, as text. While the text is not
                empty, the process may not start slices (activities that send lines).
        """
        self._resources = resources
        quotas, groups = resources.database.quotas, resources.database.budget_groups
        budgets = DailyBudgets(quotas, groups, resources.settings.quotas.budget)
        window = timedelta(seconds=resources.settings.max_window_seconds) + MAX_START_DELAY
        costs = BatchCosts(resources.database.progress)
        self.permissions = CachedPermissions(quotas, budgets, costs, window)
        self.tenant_settings = StoredTenantSettings(resources.database, process_name())
        self.callbacks = CallbackWatch(resources.database.callbacks, resources.settings)
        self.context = WorkerContext(
            storage=resources.storage,
            routers=resources.registry,
            progress=progress,
            metrics=resources.metrics,
            settings=resources.settings,
            waiting_reasons=WaitingReasonPublisher(
                temporal_reason_signal(resources.temporal), resources.database.waiting
            ),
            costs=costs,
            heartbeat=partial(temporal_heartbeat, resources.temporal),
            rates=resources.rates,
            permissions=self.permissions,
            tenant_settings=self.tenant_settings,
            callbacks=self.callbacks,
            calls=resources.database.calls,
            is_cancelled=self._is_cancelled,
            missing_dependencies=blocking,
            quarantine_lock=resources.quarantine_lock,
        )
        self._execution = Execution(self.context)

    @property
    def running(self) -> Mapping[tuple[str, str], int]:
        """Number of running slices (activities that send lines) in this process, by batch id and model."""
        return self._execution.running

    def poller_factories(self, models: frozenset[str]) -> dict[str, PollerFactory]:
        """Return, for each name of a task queue, the function that creates the queue's poller.

        The task queues are one queue for each model in `models`, and the dispatch queue. If there is a rate
        limit over all models, the models without their own rate limit share the dispatch queue.
        """
        queues = {temporal_names.inference_queue(safe_name(model)): model for model in models}
        queues[temporal_names.DISPATCH_QUEUE] = ALL_MODELS
        return {queue: partial(self._build_worker, queue, model) for queue, model in queues.items()}

    async def _is_cancelled(self, tenant: str, batch_id: str) -> bool:
        row = await self._resources.database.batches.get(tenant, batch_id)
        return row is not None and row.cancel_requested_at is not None

    def _build_worker(self, queue: str, model: str) -> ReconnectingWorker:
        """Build the worker of one task queue.

        `model` is the queue's model, or `ALL_MODELS` for the dispatch queue, which models share.
        """
        settings = self._resources.settings
        worker = Worker(
            self._resources.temporal,
            task_queue=queue,
            activities=[self._execution.run_slice],
            tuner=SliceSlots(model, self.context.demand).tuner(),
            # One poll is enough because slices are rare, and the server limits the polls of a namespace.
            max_concurrent_activity_task_polls=1,
            max_heartbeat_throttle_interval=_SLICE_HEARTBEAT_INTERVAL,
            default_heartbeat_throttle_interval=_SLICE_HEARTBEAT_INTERVAL,
            graceful_shutdown_timeout=_drain_timeout(settings),
            deployment_config=deployment_config(settings),
            interceptors=[
                ActivityMetricsInterceptor(self._resources.metrics),
                WaitingReasonInterceptor(self.context.waiting_reasons),
            ],
        )
        return ReconnectingWorker(worker, self._resources.connection)


def build_fleet_metrics(resources: WorkerResources) -> FleetMetricsCollector:
    """Build the collector that refreshes the fleet's metrics. Workers with the role `control` run it."""
    database, registry, metrics = resources.database, resources.registry, resources.metrics
    live = LiveBatchCollector(database.fleet, metrics)
    lost_runs = LostRunCollector(TemporalEndedRuns(resources.temporal), live, metrics)
    forecasts = ForecastPublisher(database, metrics, temporal_forecast_signal(resources.temporal))
    maintenance = MaintenanceCollector(database.retention, database.consistency_checks, metrics)
    default_budget = resources.settings.quotas.budget
    budgets = BudgetCollector(database.quotas, database.budget_groups, default_budget, metrics)
    queues = QueueCollector(
        partial(describe_queue, resources.temporal), lambda: registry.known_models | live.models, metrics
    )
    sources = {
        "batches": live.refresh,
        "forecasts": forecasts.refresh,
        "runs": lost_runs.refresh,  # after `batches`, because it checks the live batches
        "retention": maintenance.refresh,
        "budgets": budgets.refresh,
        "queues": queues.refresh,
    }
    return FleetMetricsCollector(sources, metrics, every_seconds=_OBSERVE_SECONDS)


def build_waiting_reason_monitor(resources: WorkerResources) -> WaitingReasonMonitor:
    """Build the monitor that finds out why batches wait. Workers with the role `control` run it."""
    return WaitingReasonMonitor(
        resources.database,
        partial(describe_queue, resources.temporal),
        resources.rates,
        temporal_reason_signal(resources.temporal),
    )


def deployment_config(settings: Settings) -> WorkerDeploymentConfig | None:
    """Return the configuration of Worker Deployment Versioning; None if the settings name no deployment.

    Workflows that set no versioning behavior themselves get the behavior `PINNED`. So the workers of one
    build (version of the code) run a batch from its start to its end (decision 0006).

    Raises:
        SettingsError: the settings name a deployment without a build, or a build without a deployment.
    """
    name, build = settings.deployment_name, settings.build_id
    if bool(name) != bool(build):
        missing = "BUILD_ID" if name else "DEPLOYMENT_NAME"
        raise SettingsError(
            f"BATCHWRIGHT_{missing} is missing: BATCHWRIGHT_DEPLOYMENT_NAME ({name!r}) and "
            f"BATCHWRIGHT_BUILD_ID ({build!r}) go together."
        )
    if not name:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=name, build_id=build),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def workflow_sandbox() -> SandboxedWorkflowRunner:
    """Return the runner that executes workflow code in the SDK's sandbox, with the default restrictions.

    All workflow runs share the imported modules of `batchwright`. By default, the sandbox imports these
    modules again for each run (decision 0060).
    """
    restrictions = SandboxRestrictions.default.with_passthrough_modules("batchwright")
    return SandboxedWorkflowRunner(restrictions=restrictions)


def _drain_timeout(settings: Settings) -> timedelta:
    return timedelta(seconds=settings.drain_seconds)
