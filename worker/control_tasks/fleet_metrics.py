"""Metrics of the whole fleet, which workers with the role `control` refresh.

`FleetMetricsCollector` refreshes all collectors of a process: live batches, their forecasts, batches without
a run, retention and consistency checks, budgets, task queues.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.temporal_names import (
    CONTROL_QUEUE,
    DISPATCH_QUEUE,
    IO_QUEUE,
    OUTPUT_QUEUE,
    WEBHOOK_QUEUE,
    inference_queue,
)
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.operations.consistency_checks import ConsistencyChecksTable
from batchwright.database.tables.operations.fleet import LiveBatch, LiveBatches, ModelDeadline
from batchwright.database.tables.operations.retention import RetentionTable
from batchwright.rules.forecast.deadline_demand import (
    HORIZONS,
    DueCount,
    lines_within,
    required_rate,
)
from batchwright.rules.forecast.throughput_history import ThroughputHistory, remaining_seconds
from batchwright.rules.ids import safe_name
from batchwright.telemetry.labels import OTHER, top_names
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal.task_queues import DescribeQueue, QueueReport

logger = logging.getLogger(__name__)
Refresh = Callable[[datetime], Awaitable[None]]  # raises DatabaseUnavailable or RPCError
_LIVE_STATUSES = (
    BatchStatus.VALIDATING,
    BatchStatus.IN_PROGRESS,
    BatchStatus.FINALIZING,
    BatchStatus.CANCELLING,
)
# The workflow of a batch ends as `completed`, even if the batch fails or is cancelled.
_LOST_RUNS_QUERY = (
    "WorkflowType = 'BatchWorkflow' AND ExecutionStatus IN ('Terminated', 'Failed', 'TimedOut', 'Canceled')"
)
_MAX_LOST_RUNS = 1000  # with more, only the runs of live batches are listed
_IDS_PER_QUERY = 100
_MAX_CONCURRENT_CALLS = 8


def _now() -> datetime:
    return datetime.now(UTC)


class FleetMetricsCollector:
    """The collector that regularly refreshes metrics from several sources, one source after the other.

    If a source cannot be read, its metrics keep their values. The metric `observed_timestamp_seconds` shows
    when each source was last read.

    Args:
        sources: for each source, by name, the function that refreshes its metrics.
        metrics: metrics of the process.
        every_seconds: pause between two refreshes.
        now: returns the current time.
    """

    def __init__(
        self,
        sources: Mapping[str, Refresh],
        metrics: Metrics,
        *,
        every_seconds: float,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._sources, self._metrics = sources, metrics
        self._every, self._now = every_seconds, now
        self._failing: set[str] = set()

    async def run(self) -> None:
        """Refresh the metrics of all sources regularly until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(self._every)

    async def refresh(self) -> None:
        """Refresh the metrics of all sources once.

        If the database or Temporal is unavailable, log this and keep the earlier values. Do not raise an
        error.
        """
        for source, refresh in self._sources.items():
            try:
                await refresh(self._now())
            except (DatabaseUnavailable, RPCError) as error:
                if source not in self._failing:
                    extra = {"source": source, "error": str(error)}
                    logger.warning("fleet metrics cannot be refreshed", extra=extra)
                self._failing.add(source)
            else:
                self._failing.discard(source)
                self._metrics.observed_at.labels(source).set(self._now().timestamp())


class LiveBatchCollector:
    """The collector of metrics of live batches: number, age, lines, slack, and demand.

    A live batch is a batch that has not ended. The slack is the time between the forecast end of a batch and
    its deadline. A model's demand has two metrics: the number of lines that are due soon, and the lowest rate
    (lines per second) at which all lines get results before their deadlines. Each refresh removes the
    values of ended batches.
    """

    def __init__(self, table: LiveBatches, metrics: Metrics) -> None:
        self._table, self._metrics = table, metrics
        self._throughput = ThroughputHistory()
        self.models: frozenset[str] = frozenset()  # models with lines left at the last refresh
        self.batches: frozenset[str] = frozenset()  # ids of the live batches at the last refresh

    async def refresh(self, now: datetime) -> None:
        """Read the live batches and set their gauges.

        Raises:
            DatabaseUnavailable: the database does not respond. The gauges keep their values.
        """
        batches = await self._table.live()
        lines_left = await self._table.lines_left()
        lines_due = await self._table.lines_due(now)
        self.batches = frozenset(batch.id for batch in batches)
        self._show_statuses(batches, now)
        self._show_models(lines_left)
        self._show_demand(lines_due, now)
        self._show_tenants(batches, now)

    def _show_statuses(self, batches: Sequence[LiveBatch], now: datetime) -> None:
        metrics = self._metrics
        for status in _LIVE_STATUSES:
            entered = [batch.entered_at for batch in batches if batch.status is status]
            oldest = (now - min(entered)).total_seconds() if entered else 0.0
            metrics.jobs.labels(status).set(len(entered))
            metrics.oldest_job_age.labels(status).set(max(oldest, 0.0))
        settled = sum(batch.settled for batch in batches)
        metrics.items.labels("settled").set(settled)
        metrics.items.labels("pending").set(sum(batch.lines for batch in batches) - settled)
        metrics.past_deadline.set(sum(batch.deadline < now for batch in batches))

    def _show_models(self, lines_left: dict[str, int]) -> None:
        metrics = self._metrics
        self.models = metrics.models.required = frozenset(lines_left)
        by_label = Counter[tuple[str]]()
        for model, lines in lines_left.items():
            by_label[metrics.models(model),] += lines
        metrics.model_lines_left.replace(by_label)

    def _show_demand(self, lines_due: Sequence[ModelDeadline], now: datetime) -> None:
        metrics = self._metrics
        due = defaultdict[str, list[DueCount]](list)
        for each in lines_due:
            seconds_left = (each.deadline - now).total_seconds()
            due[metrics.models(each.model)].append(DueCount(seconds_left, each.lines))
        metrics.model_required_rate.replace({(model,): required_rate(lines) for model, lines in due.items()})
        metrics.model_lines_due.replace(
            {
                (model, horizon): lines_within(lines, seconds)
                for model, lines in due.items()
                for horizon, seconds in HORIZONS.items()
            }
        )

    def _show_tenants(self, batches: Sequence[LiveBatch], now: datetime) -> None:
        """Set the gauges of each tenant: number of batches and lines, and the smallest slack of its batches.

        The slack is the time between a batch's forecast end and its deadline. Only the tenants with the most
        lines left get their own series. All others share one series.
        """
        metrics = self._metrics
        dispatching = [batch for batch in batches if batch.status is not BatchStatus.CANCELLING]
        slack = {batch.id: self._slack(batch, now) for batch in dispatching}
        self._throughput.retain(slack)
        metrics.at_risk.set(sum(seconds < 0 for seconds in slack.values()))
        left = Counter[str]()
        for batch in batches:
            left[batch.tenant] += batch.lines - batch.settled
        labelled = top_names(left, metrics.tenants.limit)
        jobs, lines, least_slack = Counter[str](), Counter[str](), dict[str, float]()
        for batch in batches:
            tenant = batch.tenant if batch.tenant in labelled else OTHER
            jobs[tenant] += 1
            lines[tenant] += batch.lines - batch.settled
            if batch.id in slack:
                least_slack[tenant] = min(slack[batch.id], least_slack.get(tenant, slack[batch.id]))
        for family, values in (
            (metrics.tenant_jobs, jobs),
            (metrics.tenant_lines_left, lines),
            (metrics.deadline_slack, least_slack),
        ):
            family.clear()
            for tenant, value in values.items():
                family.labels(tenant).set(value)

    def _slack(self, batch: LiveBatch, now: datetime) -> float:
        """Return the seconds from the batch's forecast end to its deadline; negative if the batch is late."""
        started_at = batch.in_progress_at or batch.created_at
        remaining = remaining_seconds(
            remaining=batch.lines - batch.settled if batch.in_progress_at else 1,
            settled=batch.settled,
            elapsed=max((now - started_at).total_seconds(), 0.0),
            speed=self._throughput.record(batch.id, batch.settled, now.timestamp()),
        )
        return (batch.deadline - now).total_seconds() - remaining


class EndedRunLookup(Protocol):
    """An interface that looks up in Temporal how the workflow runs of batches have ended.

    All methods raise RPCError if Temporal does not respond.
    """

    async def with_ended_run(self, batch_ids: Collection[str]) -> frozenset[str]:
        """Return the ids of batches with a workflow run that has failed, timed out, or was stopped.

        A cancel or a termination in Temporal stops a run. The result contains only ids from `batch_ids`.
        """
        ...

    async def is_open(self, batch_id: str) -> bool:
        """Return True if the latest run of the batch is running, False if it has ended or does not exist."""
        ...


class TemporalEndedRuns(EndedRunLookup):
    def __init__(self, client: Client) -> None:
        self._client = client

    async def with_ended_run(self, batch_ids: Collection[str]) -> frozenset[str]:
        found = [run.id async for run in self._client.list_workflows(_LOST_RUNS_QUERY, limit=_MAX_LOST_RUNS)]
        if len(found) == _MAX_LOST_RUNS:  # there may be more
            ids = sorted(batch_ids)
            for first in range(0, len(ids), _IDS_PER_QUERY):
                group = ", ".join(f"'{each}'" for each in ids[first : first + _IDS_PER_QUERY])
                query = f"{_LOST_RUNS_QUERY} AND WorkflowId IN ({group})"
                found += [run.id async for run in self._client.list_workflows(query)]
        return frozenset(found) & frozenset(batch_ids)

    async def is_open(self, batch_id: str) -> bool:
        try:
            run = await self._client.get_workflow_handle(batch_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return run.status in (WorkflowExecutionStatus.RUNNING, None)


class LostRunCollector:
    """The collector of the number of lost batches.

    A lost batch is a live batch whose workflow run has failed, timed out or was stopped. No process works on
    it any longer.
    """

    def __init__(self, runs: EndedRunLookup, live: LiveBatchCollector, metrics: Metrics) -> None:
        """Create the collector. Each refresh looks up the runs of the batches that `live` has read last."""
        self._runs, self._live, self._metrics = runs, live, metrics

    async def refresh(self, now: datetime) -> None:
        """Look up the runs of the live batches, and set the gauge of lost batches.

        Raises:
            RPCError: Temporal does not respond. The gauge keeps its value.
        """
        live = self._live.batches
        suspected = sorted(await self._runs.with_ended_run(live)) if live else []
        lost = [batch_id for batch_id in suspected if not await self._runs.is_open(batch_id)]
        self._metrics.without_run.set(len(lost))


class MaintenanceCollector:
    """The collector of metrics about the last success of retention and the last consistency check."""

    def __init__(self, retention: RetentionTable, checks: ConsistencyChecksTable, metrics: Metrics) -> None:
        self._retention, self._checks, self._metrics = retention, checks, metrics

    async def refresh(self, now: datetime) -> None:
        """Read the last results of retention and consistency checks, and set their gauges.

        Raises:
            DatabaseUnavailable: the database does not respond. Gauges whose data could not be read keep their
                values.
        """
        metrics = self._metrics
        for kind, at in (await self._retention.successes()).items():
            metrics.retention_succeeded_at.labels(kind).set(at.timestamp())
        found = await self._checks.latest()
        for kind, (count, _) in found.items():
            metrics.consistency_differences.labels(kind, "left").set(count.left)
            metrics.consistency_differences.labels(kind, "repaired").set(count.found - count.left)
        if found:
            metrics.checked_at.set(min(checked.at for checked in found.values()).timestamp())


class QueueCollector:
    """The collector of metrics of task queues: length, age and pollers of fixed queues and of models' queues.

    Batches may name any number of models, so only a limited number of models are shown under their own names
    in metrics. Queues of all other models are left out.

    Args:
        describe: reads the state of a task queue from Temporal.
        models: returns the models in the registry and the models that live batches need.
    """

    def __init__(
        self, describe: DescribeQueue, models: Callable[[], frozenset[str]], metrics: Metrics
    ) -> None:
        self._describe, self._models, self._metrics = describe, models, metrics

    async def refresh(self, now: datetime) -> None:
        """Read the state of each queue from Temporal, and set the gauges.

        Raises:
            RPCError: Temporal does not respond. The gauges keep their values.
        """
        label_of = self._metrics.models
        models = [model for model in self._models() if label_of(model) == model]
        fixed = (CONTROL_QUEUE, IO_QUEUE, OUTPUT_QUEUE, WEBHOOK_QUEUE, DISPATCH_QUEUE)
        labels = [(queue, "") for queue in fixed]
        labels += [(inference_queue(safe_name(model)), model) for model in sorted(models)]
        semaphore = asyncio.Semaphore(_MAX_CONCURRENT_CALLS)

        async def describe(queue: str) -> QueueReport:
            async with semaphore:
                return await self._describe(queue)

        reports = await asyncio.gather(*(describe(queue) for queue, _ in labels))
        metrics = self._metrics
        for family in (metrics.queue_depth, metrics.queue_oldest_age, metrics.queue_pollers):
            family.clear()
        for (queue, model), report in zip(labels, reports, strict=True):
            metrics.queue_depth.labels(queue, model).set(report.backlog)
            metrics.queue_oldest_age.labels(queue, model).set(report.oldest_seconds)
            metrics.queue_pollers.labels(queue, model).set(report.pollers)
