"""Fleet metrics of a control worker."""

from collections.abc import Collection
from datetime import datetime, timedelta

from temporalio.service import RPCError, RPCStatusCode

from batchwright.activities.consistency.report import DifferenceKind
from batchwright.contracts.temporal_payloads.batch import BatchOrder, ModelCounts
from batchwright.contracts.temporal_payloads.consistency import DifferenceCount
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.tenants.quotas import DailyAmounts
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal.task_queues import QueueReport
from batchwright.worker.control_tasks.budget_metrics import BudgetCollector
from batchwright.worker.control_tasks.fleet_metrics import (
    EndedRunLookup,
    FleetMetricsCollector,
    LiveBatchCollector,
    LostRunCollector,
    MaintenanceCollector,
    QueueCollector,
)
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.rows import after, an_order, slice_progress


def report(backlog: int, oldest_seconds: float, pollers: int) -> QueueReport:
    return QueueReport(name="", backlog=backlog, oldest_seconds=oldest_seconds, pollers=pollers, limit=None)


class Server:
    """A fake Temporal server with task queues in memory. `described` has the task queues that were read."""

    def __init__(self) -> None:
        self.reports: dict[str, QueueReport] = {}
        self.described: list[str] = []
        self.failing = False

    async def describe(self, queue: str) -> QueueReport:
        if self.failing:
            raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
        self.described.append(queue)
        return self.reports.get(queue, report(0, 0.0, 1))


class EndedRuns(EndedRunLookup):
    """Batches whose workflow run was ended from outside.

    `runs` maps the id of a batch to True if a later run of the batch is open.
    """

    def __init__(self) -> None:
        self.runs: dict[str, bool] = {}
        self.failing = False

    async def with_ended_run(self, batch_ids: Collection[str]) -> frozenset[str]:
        if self.failing:
            raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
        return frozenset(self.runs) & frozenset(batch_ids)

    async def is_open(self, batch_id: str) -> bool:
        return self.runs[batch_id]


class FleetFixture:
    """A collector of fleet metrics with its database, server and clock."""

    def __init__(self, tenants: int = 20) -> None:
        self.database, self.server = MemoryDatabase(), Server()
        self.metrics = Metrics(tenants=tenants)
        self.served = frozenset[str]()
        self.now = after(0)
        live = LiveBatchCollector(self.database.fleet, self.metrics)
        self.runs = EndedRuns()
        groups = self.database.budget_groups
        self.budgets = BudgetCollector(self.database.quotas, groups, DailyAmounts(), self.metrics)
        maintenance = MaintenanceCollector(
            self.database.retention, self.database.consistency_checks, self.metrics
        )
        queues = QueueCollector(self.server.describe, lambda: self.served | live.models, self.metrics)
        sources = {
            "batches": live.refresh,
            "runs": LostRunCollector(self.runs, live, self.metrics).refresh,
            "retention": maintenance.refresh,
            "budgets": self.budgets.refresh,
            "queues": queues.refresh,
        }
        self.collector = FleetMetricsCollector(sources, self.metrics, every_seconds=15, now=lambda: self.now)

    async def refresh(self, at: datetime) -> None:
        self.now = at
        await self.collector.refresh()

    async def batch(self, id: str, tenant: str = "t", lines: int = 100, **changes: object) -> BatchOrder:
        """Create a batch that has been in progress since START. Return the argument of its workflow."""
        order = an_order(id, tenant, **changes)
        await self.database.batches.upsert(order)
        models = [ModelCounts(model="a", lines=lines)]
        await self.database.batches.start(tenant, id, total=lines, models=models, at=after(0))
        return order

    async def settle(self, id: str, lines: int, tenant: str = "t") -> None:
        await self.database.progress.record([slice_progress(tenant=tenant, batch_id=id, completed=lines)])

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value("batchwright_" + name, labels)


async def test_batches_are_counted_by_status_and_age() -> None:
    fleet = FleetFixture()
    await fleet.batch("batch_1")
    await fleet.batch("batch_2")
    await fleet.database.batches.start_finalizing("t", "batch_2", after(50))
    await fleet.refresh(after(60))
    assert fleet.value("jobs", status="in_progress") == 1
    assert fleet.value("oldest_job_age_seconds", status="in_progress") == 60
    assert fleet.value("oldest_job_age_seconds", status="finalizing") == 10
    assert (fleet.value("jobs", status="validating"), fleet.value("jobs", status="cancelling")) == (0, 0)


async def test_lines_are_counted_settled_and_pending() -> None:
    fleet = FleetFixture()
    await fleet.batch("batch_1", lines=10)
    await fleet.settle("batch_1", 4)
    await fleet.refresh(after(1))
    assert (fleet.value("items", status="settled"), fleet.value("items", status="pending")) == (4, 6)
    assert fleet.value("model_lines_left", model="a") == 6


async def test_a_batch_that_is_fast_enough_is_at_no_risk() -> None:
    fleet = FleetFixture()
    await fleet.batch("batch_1", deadline=after(1000))
    await fleet.settle("batch_1", 20)
    await fleet.refresh(after(100))
    assert fleet.value("batches_at_risk") == 0
    assert fleet.value("deadline_slack_seconds", tenant="t") == 900 - 400


async def test_a_batch_that_is_too_slow_is_at_risk() -> None:
    fleet = FleetFixture()
    await fleet.batch("batch_1", deadline=after(1000))
    await fleet.settle("batch_1", 1)
    await fleet.refresh(after(100))
    assert fleet.value("batches_at_risk") == 1
    assert fleet.value("deadline_slack_seconds", tenant="t") == 900 - 9900


async def test_a_batch_that_became_fast_is_no_longer_at_risk() -> None:
    fleet = FleetFixture()
    await fleet.batch("batch_1", deadline=after(2000))
    await fleet.settle("batch_1", 1)
    await fleet.refresh(after(1000))
    assert fleet.value("batches_at_risk") == 1
    await fleet.settle("batch_1", 51)
    await fleet.refresh(after(1100))
    assert fleet.value("batches_at_risk") == 0


async def test_a_batch_that_is_cancelled_is_at_no_risk() -> None:
    fleet = FleetFixture()
    await fleet.batch("batch_1", deadline=after(100))
    await fleet.database.batches.request_cancel("t", "batch_1", after(10))
    await fleet.refresh(after(90))
    assert fleet.value("batches_at_risk") == 0
    assert fleet.value("jobs", status="cancelling") == 1


async def test_a_batch_still_live_after_its_deadline_is_counted() -> None:
    fleet = FleetFixture()
    await fleet.batch("batch_1", deadline=after(100))
    await fleet.refresh(after(99))
    assert fleet.value("batches_past_deadline") == 0
    await fleet.refresh(after(101))
    assert fleet.value("batches_past_deadline") == 1


async def test_a_live_batch_without_a_run_is_counted_until_another_run_continues() -> None:
    fleet = FleetFixture()
    await fleet.batch("batch_1")
    await fleet.batch("batch_2")
    await fleet.refresh(after(1))
    assert fleet.value("batches_without_run") == 0
    fleet.runs.runs = {"batch_1": False, "batch_of_last_week": False}
    await fleet.refresh(after(2))
    assert fleet.value("batches_without_run") == 1
    fleet.runs.failing = True
    await fleet.refresh(after(3))
    assert fleet.value("batches_without_run") == 1
    assert fleet.value("observed_timestamp_seconds", source="runs") == after(2).timestamp()
    fleet.runs.failing, fleet.runs.runs = False, {"batch_1": True}
    await fleet.refresh(after(4))
    assert fleet.value("batches_without_run") == 0


async def test_a_batch_that_ended_needs_no_run() -> None:
    fleet = FleetFixture()
    await fleet.batch("batch_1")
    fleet.runs.runs = {"batch_1": False}
    await fleet.database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(1))
    await fleet.refresh(after(2))
    assert fleet.value("batches_without_run") == 0


async def test_ended_batches_leave_no_series_behind() -> None:
    fleet = FleetFixture()
    await fleet.batch("batch_1")
    await fleet.refresh(after(1))
    await fleet.database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(2))
    await fleet.refresh(after(3))
    assert fleet.value("jobs", status="in_progress") == 0
    assert fleet.value("model_lines_left", model="a") is None
    assert fleet.value("tenant_jobs", tenant="t") is None


async def test_lines_due_are_counted_by_horizon_with_the_rate_that_their_deadlines_require() -> None:
    fleet = FleetFixture()
    await fleet.batch("batch_1", lines=1100, deadline=after(1000))
    await fleet.batch("batch_2", tenant="u", lines=1000, deadline=after(20_000))
    await fleet.settle("batch_1", 200)
    await fleet.refresh(after(100))
    due = {each: fleet.value("model_lines_due", model="a", horizon=each) for each in ("1h", "6h", "24h")}
    assert due == {"1h": 900, "6h": 1900, "24h": 1900}
    assert fleet.value("model_required_results_per_second", model="a") == 1.0


async def test_a_model_without_lines_that_can_be_sent_has_no_demand() -> None:
    fleet = FleetFixture()
    await fleet.batch("batch_1", deadline=after(1000))
    await fleet.refresh(after(1))
    assert fleet.value("model_required_results_per_second", model="a") == 100 / 999
    await fleet.database.batches.request_cancel("t", "batch_1", after(2))
    await fleet.refresh(after(3))
    assert fleet.value("model_lines_left", model="a") == 100
    assert fleet.value("model_lines_due", model="a", horizon="24h") is None
    assert fleet.value("model_required_results_per_second", model="a") is None


async def test_only_the_tenants_with_the_most_lines_left_have_their_name() -> None:
    fleet = FleetFixture(tenants=1)
    await fleet.batch("batch_1", tenant="small", lines=1)
    await fleet.batch("batch_2", tenant="large", lines=50)
    await fleet.batch("batch_3", tenant="middle", lines=20)
    await fleet.refresh(after(1))
    left = {name: fleet.value("tenant_lines_left", tenant=name) for name in ("large", "middle", "other")}
    assert left == {"large": 50, "middle": None, "other": 21}
    assert fleet.value("tenant_jobs", tenant="other") == 2


async def test_queues_of_served_models_and_of_models_with_lines_left_are_described() -> None:
    fleet = FleetFixture()
    fleet.served = frozenset({"b"})
    await fleet.batch("batch_1")
    await fleet.refresh(after(1))
    assert [queue.rpartition("-")[0] or queue for queue in fleet.server.described] == [
        "control",
        "io",
        "outputs",
        "webhooks",
        "dispatch",
        "inference.a",
        "inference.b",
    ]


async def test_unlisted_models_are_shown_and_their_queues_described_up_to_a_limit() -> None:
    fleet = FleetFixture()
    fleet.metrics.models.set_listed(["listed"])
    fleet.served = frozenset({"listed", *(f"unlisted{number}" for number in range(50))})
    await fleet.batch("batch_1")
    models = [ModelCounts(model=f"m{number:03}", lines=2) for number in range(500)]
    order = an_order("batch_2", "t")
    await fleet.database.batches.upsert(order)
    await fleet.database.batches.start("t", "batch_2", total=1000, models=models, at=after(0))
    for at in (1, 16):
        fleet.server.described.clear()
        await fleet.refresh(after(at))
        [family] = fleet.metrics.model_lines_left.collect()
        left = {sample.labels["model"]: sample.value for sample in family.samples}
        assert len(left) == 101
        assert sum(left.values()) == 1100
        [family] = fleet.metrics.model_lines_due.collect()
        assert len(family.samples) == 3 * 101
        [family] = fleet.metrics.model_required_rate.collect()
        assert {sample.labels["model"] for sample in family.samples} == left.keys()
        assert len(fleet.server.described) == 5 + 100 + 1


async def test_a_queue_shows_its_backlog() -> None:
    fleet = FleetFixture()
    fleet.server.reports["io"] = report(3, 7.5, 0)
    await fleet.refresh(after(1))
    labels = {"queue": "io", "model": ""}
    assert fleet.value("queue_depth", **labels) == 3
    assert fleet.value("queue_oldest_age_seconds", **labels) == 7.5
    assert fleet.value("queue_pollers", **labels) == 0


async def test_a_value_that_cannot_be_refreshed_is_kept_and_shows_its_age() -> None:
    fleet = FleetFixture()
    await fleet.batch("batch_1")
    await fleet.refresh(after(1))
    fleet.server.failing = True
    fleet.database.rows.failing = DatabaseUnavailable("away")
    await fleet.refresh(after(100))
    assert fleet.value("jobs", status="in_progress") == 1
    for source in ("batches", "queues"):
        assert fleet.value("observed_timestamp_seconds", source=source) == after(1).timestamp()
    fleet.server.failing, fleet.database.rows.failing = False, None
    await fleet.refresh(after(100) + timedelta(seconds=15))
    assert fleet.value("observed_timestamp_seconds", source="queues") == after(115).timestamp()


async def test_the_findings_and_the_time_of_the_last_consistency_check_are_shown() -> None:
    fleet = FleetFixture()
    counts = {kind.value: DifferenceCount() for kind in DifferenceKind} | {
        "counts": DifferenceCount(found=3, left=1)
    }
    await fleet.database.consistency_checks.record(counts, after(60))
    await fleet.refresh(after(90))
    assert fleet.value("consistency_differences", kind="counts", state="left") == 1
    assert fleet.value("consistency_differences", kind="counts", state="repaired") == 2
    assert fleet.value("consistency_differences", kind="run_open", state="left") == 0
    assert fleet.value("consistency_check_last_timestamp_seconds") == after(60).timestamp()
