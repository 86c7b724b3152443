"""What a control worker shows of the fleet."""

from datetime import datetime, timedelta

from temporalio.service import RPCError, RPCStatusCode

from activities.audit.differences import Kind
from batchwright.contracts.audit import AuditCount
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.openai import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import ModelCount
from batchwright.telemetry.metrics import Metrics
from tests.fakes.database import MemoryDatabase
from tests.integration.rows import after, an_order, told
from worker.broken_runs import BatchRuns, BrokenRuns
from worker.budgets import BudgetWatch
from worker.observer import Observer
from worker.outlook import Outlook
from worker.queues import Queues, QueueState, QueueWatch
from worker.retained import Retained

EMPTY = QueueState(depth=0, oldest_age_seconds=0.0, pollers=1)


class Server(Queues):
    """Task queues in memory."""

    def __init__(self) -> None:
        self.states: dict[str, QueueState] = {}
        self.asked: list[str] = []
        self.failing = False

    async def describe(self, queue: str) -> QueueState:
        if self.failing:
            raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
        self.asked.append(queue)
        return self.states.get(queue, EMPTY)


class Broken(BatchRuns):
    """Runs by batch, those that were ended from outside only: whether another one goes on."""

    def __init__(self) -> None:
        self.runs: dict[str, bool] = {}
        self.failing = False

    async def broken(self) -> frozenset[str]:
        if self.failing:
            raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
        return frozenset(self.runs)

    async def is_open(self, batch_id: str) -> bool:
        return self.runs[batch_id]


class Watch:
    """An observer with its database, server and clock."""

    def __init__(self, tenants: int = 20) -> None:
        self.database, self.server = MemoryDatabase(), Server()
        self.metrics = Metrics(tenants=tenants)
        self.served = frozenset[str]()
        self.now = after(0)
        outlook = Outlook(self.database.fleet, self.metrics)
        queues = QueueWatch(self.server, lambda: self.served, self.metrics)
        retained = Retained(self.database.retention, self.database.audits, self.metrics)
        self.budgets = BudgetWatch(self.database.quotas, 0, self.metrics)
        self.runs = Broken()
        runs = BrokenRuns(self.runs, outlook, self.metrics)
        self.observer = Observer(
            outlook,
            queues,
            runs,
            self.metrics,
            retained,
            self.budgets,
            every_seconds=15,
            now=lambda: self.now,
        )

    async def look(self, at: datetime) -> None:
        self.now = at
        await self.observer.look()

    async def batch(self, id: str, tenant: str = "t", lines: int = 100, **changes: object) -> BatchOrder:
        """In progress since START."""
        order = an_order(id, tenant, **changes)
        await self.database.batches.upsert(order)
        models = [ModelCount(model="a", lines=lines)]
        await self.database.batches.begin(tenant, id, total=lines, models=models, at=after(0))
        return order

    async def settle(self, id: str, lines: int, tenant: str = "t") -> None:
        await self.database.progress.record([told(tenant=tenant, batch_id=id, completed=lines)])

    def shown(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value("batchwright_" + name, labels)


async def test_batches_are_counted_by_status_and_age() -> None:
    watch = Watch()
    await watch.batch("batch_1")
    await watch.batch("batch_2")
    await watch.database.batches.start_finalizing("t", "batch_2", after(50))
    await watch.look(after(60))
    assert watch.shown("jobs", status="in_progress") == 1
    assert watch.shown("oldest_job_age_seconds", status="in_progress") == 60
    assert watch.shown("oldest_job_age_seconds", status="finalizing") == 10
    assert (watch.shown("jobs", status="validating"), watch.shown("jobs", status="cancelling")) == (0, 0)


async def test_lines_are_counted_settled_and_pending() -> None:
    watch = Watch()
    await watch.batch("batch_1", lines=10)
    await watch.settle("batch_1", 4)
    await watch.look(after(1))
    assert (watch.shown("items", status="settled"), watch.shown("items", status="pending")) == (4, 6)
    assert watch.shown("model_lines_left", model="a") == 6


async def test_a_batch_that_is_fast_enough_is_at_no_risk() -> None:
    watch = Watch()
    await watch.batch("batch_1", expires_at=after(1000))
    await watch.settle("batch_1", 20)
    await watch.look(after(100))
    assert watch.shown("batches_at_risk") == 0
    assert watch.shown("deadline_slack_seconds", tenant="t") == 900 - 400


async def test_a_batch_that_is_too_slow_is_at_risk() -> None:
    watch = Watch()
    await watch.batch("batch_1", expires_at=after(1000))
    await watch.settle("batch_1", 1)
    await watch.look(after(100))
    assert watch.shown("batches_at_risk") == 1
    assert watch.shown("deadline_slack_seconds", tenant="t") == 900 - 9900


async def test_a_batch_that_got_fast_is_at_risk_no_more() -> None:
    watch = Watch()
    await watch.batch("batch_1", expires_at=after(2000))
    await watch.settle("batch_1", 1)
    await watch.look(after(1000))
    assert watch.shown("batches_at_risk") == 1
    await watch.settle("batch_1", 51)
    await watch.look(after(1100))
    assert watch.shown("batches_at_risk") == 0


async def test_a_batch_that_is_cancelled_is_at_no_risk() -> None:
    watch = Watch()
    await watch.batch("batch_1", expires_at=after(100))
    await watch.database.batches.note_cancel("t", "batch_1", after(10))
    await watch.look(after(90))
    assert watch.shown("batches_at_risk") == 0
    assert watch.shown("jobs", status="cancelling") == 1


async def test_a_batch_that_outlives_its_window_is_counted() -> None:
    watch = Watch()
    await watch.batch("batch_1", expires_at=after(100))
    await watch.look(after(99))
    assert watch.shown("batches_past_deadline") == 0
    await watch.look(after(101))
    assert watch.shown("batches_past_deadline") == 1


async def test_a_live_batch_whose_run_was_terminated_is_counted_until_another_one_goes_on() -> None:
    watch = Watch()
    await watch.batch("batch_1")
    await watch.batch("batch_2")
    await watch.look(after(1))
    assert watch.shown("batches_without_run") == 0
    watch.runs.runs = {"batch_1": False, "batch_of_last_week": False}
    await watch.look(after(2))
    assert watch.shown("batches_without_run") == 1
    watch.runs.failing = True
    await watch.look(after(3))
    assert watch.shown("batches_without_run") == 1
    assert watch.shown("observed_timestamp_seconds", source="runs") == after(2).timestamp()
    watch.runs.failing, watch.runs.runs = False, {"batch_1": True}
    await watch.look(after(4))
    assert watch.shown("batches_without_run") == 0


async def test_a_batch_that_ended_needs_no_run() -> None:
    watch = Watch()
    await watch.batch("batch_1")
    watch.runs.runs = {"batch_1": False}
    await watch.database.batches.end("t", "batch_1", BatchStatus.FAILED, [], after(1))
    await watch.look(after(2))
    assert watch.shown("batches_without_run") == 0


async def test_what_ended_leaves_no_series_behind() -> None:
    watch = Watch()
    await watch.batch("batch_1")
    await watch.look(after(1))
    await watch.database.batches.end("t", "batch_1", BatchStatus.FAILED, [], after(2))
    await watch.look(after(3))
    assert watch.shown("jobs", status="in_progress") == 0
    assert watch.shown("model_lines_left", model="a") is None
    assert watch.shown("tenant_jobs", tenant="t") is None


async def test_only_the_tenants_with_the_most_lines_left_have_their_name() -> None:
    watch = Watch(tenants=1)
    await watch.batch("batch_1", tenant="small", lines=1)
    await watch.batch("batch_2", tenant="large", lines=50)
    await watch.batch("batch_3", tenant="middle", lines=20)
    await watch.look(after(1))
    left = {name: watch.shown("tenant_lines_left", tenant=name) for name in ("large", "middle", "other")}
    assert left == {"large": 50, "middle": None, "other": 21}
    assert watch.shown("tenant_jobs", tenant="other") == 2


async def test_queues_of_served_models_and_of_models_with_lines_left_are_described() -> None:
    watch = Watch()
    watch.served = frozenset({"b"})
    await watch.batch("batch_1")
    await watch.look(after(1))
    assert [queue.rpartition("-")[0] or queue for queue in watch.server.asked] == [
        "control",
        "io",
        "dispatch",
        "inference.a",
        "inference.b",
    ]


async def test_a_queue_shows_what_waits_there() -> None:
    watch = Watch()
    watch.server.states["io"] = QueueState(depth=3, oldest_age_seconds=7.5, pollers=0)
    await watch.look(after(1))
    labels = {"queue": "io", "model": ""}
    assert watch.shown("queue_depth", **labels) == 3
    assert watch.shown("queue_oldest_age_seconds", **labels) == 7.5
    assert watch.shown("queue_pollers", **labels) == 0


async def test_what_cannot_be_looked_at_keeps_its_value_and_shows_its_age() -> None:
    watch = Watch()
    await watch.batch("batch_1")
    await watch.look(after(1))
    watch.server.failing = True
    watch.database.rows.failing = DatabaseUnavailable("away")
    await watch.look(after(100))
    assert watch.shown("jobs", status="in_progress") == 1
    for source in ("batches", "queues"):
        assert watch.shown("observed_timestamp_seconds", source=source) == after(1).timestamp()
    watch.server.failing, watch.database.rows.failing = False, None
    await watch.look(after(100) + timedelta(seconds=15))
    assert watch.shown("observed_timestamp_seconds", source="queues") == after(115).timestamp()


async def test_it_shows_what_the_last_audit_found_and_when_that_was() -> None:
    watch = Watch()
    counts = {kind.value: AuditCount() for kind in Kind} | {"counts": AuditCount(found=3, left=1)}
    await watch.database.audits.note(counts, after(60))
    await watch.look(after(90))
    assert watch.shown("audit_differences", kind="counts", state="left") == 1
    assert watch.shown("audit_differences", kind="counts", state="repaired") == 2
    assert watch.shown("audit_differences", kind="run_open", state="left") == 0
    assert watch.shown("audit_last_timestamp_seconds") == after(60).timestamp()
