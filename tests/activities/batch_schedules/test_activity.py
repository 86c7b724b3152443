"""The activities that create a batch when its schedule is due.

Each run of a schedule creates at most one batch. If no batch is created, the schedule's list of runs shows
why.
"""

from datetime import UTC, datetime

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from batchwright.activities.batch_schedules.activity import BatchScheduling
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.batch import BatchOrder, Caller
from batchwright.contracts.temporal_payloads.batch_schedules import (
    BatchTemplate,
    OverlapPolicy,
    RunRecord,
    ScheduledBatch,
    ScheduledRun,
    ScheduleRef,
)
from batchwright.contracts.terms import BatchStatus, Endpoint
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.schedules import ScheduleRow, ScheduleRunRow
from batchwright.rules.ids import is_batch_id
from batchwright.settings import load
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal import TemporalUnavailable
from tests.activities.slow_database import SlowDatabaseEnvironment
from tests.fakes.api_keys import create_key
from tests.fakes.batch_schedules import MemoryBatchSchedules, StoredSchedule
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.rows import START, a_file, after

RUN = ScheduledRun(
    schedule=ScheduleRef(tenant="t", schedule_id="schedule_1"), run_id="schedule_1-1", scheduled_at=START
)
LATER = RUN.model_copy(update={"run_id": "schedule_1-2", "scheduled_at": after(60)})


class SchedulingFixture:
    def __init__(self, **settings: object) -> None:
        self.database, self.metrics = MemoryDatabase(), Metrics()
        self.settings = load(**settings)
        self.schedules = MemoryBatchSchedules()

    async def schedule(self, **changes: object) -> None:
        template = BatchTemplate(
            input_file_id="file-1",
            endpoint=Endpoint.CHAT_COMPLETIONS,
            completion_window="6h",
            window_seconds=21_600,
            metadata={"run": "nightly"},
        ).model_copy(update=changes)
        row = ScheduleRow(
            tenant="t",
            id="schedule_1",
            cron="0 2 * * *",
            time_zone="UTC",
            overlap=OverlapPolicy.SKIP,
            template=template,
            created_at=START,
        )
        await self.database.schedules.insert(row, 0)
        self.database.rows.files["t", "file-1"] = a_file()

    @property
    def activities(self) -> BatchScheduling:
        return BatchScheduling(self.database, self.settings, self.metrics, self.schedules)

    async def run(self, run: ScheduledRun = RUN) -> ScheduledBatch:
        """Create the batch of a run with one activity, and record the run with another, as the
        workflow does.
        """
        batch = await ActivityEnvironment().run(self.activities.admit_scheduled_batch, run)
        record = RunRecord(run=run, batch=batch)
        await ActivityEnvironment().run(self.activities.record_scheduled_run, record)
        return batch

    async def created(self, run: ScheduledRun = RUN) -> BatchOrder:
        order = (await self.run(run)).order
        assert order is not None
        return order

    async def refused(self, code: str) -> str:
        """Check that a run creates no batch, and that the schedule has one record of it, with the error code
        `code`.

        Return the message of the refusal.
        """
        assert (await self.run()).order is None
        result = await self.run()  # another attempt
        runs = await self.database.schedules.runs("t", "schedule_1", 10)
        assert runs == [ScheduleRunRow(id=RUN.run_id, scheduled_at=START, code=code, message=result.refusal)]
        assert self.database.rows.batches == {}
        return result.refusal


@pytest.fixture
def fixture() -> SchedulingFixture:
    return SchedulingFixture()


async def test_a_batch_that_is_due_gets_a_row_and_is_listed_as_a_run(fixture: SchedulingFixture) -> None:
    await fixture.schedule(priority=5, max_cost="2", deduplicate=True, output_expires_after_seconds=86_400)
    order = await fixture.created()
    assert is_batch_id(order.batch_id)
    assert (order.tenant, order.input_file_id, order.metadata) == ("t", "file-1", {"run": "nightly"})
    assert (order.priority, order.max_cost, order.policy.deduplicate) == (5, "2", True)
    assert (order.deadline - order.created_at).total_seconds() == 21_600
    row = await fixture.database.batches.get("t", order.batch_id)
    assert row is not None
    assert (row.order, row.status) == (order, BatchStatus.VALIDATING)
    assert await fixture.database.schedules.runs("t", "schedule_1", 10) == [
        ScheduleRunRow(
            id=RUN.run_id, scheduled_at=START, batch_id=order.batch_id, status=BatchStatus.VALIDATING
        )
    ]


async def test_a_batch_that_is_admitted_has_no_row_before_its_workflow_is_started(
    fixture: SchedulingFixture,
) -> None:
    await fixture.schedule()
    admitted = await ActivityEnvironment().run(fixture.activities.admit_scheduled_batch, RUN)
    assert admitted.order is not None
    assert fixture.database.rows.batches == {}
    again = await ActivityEnvironment().run(fixture.activities.admit_scheduled_batch, RUN)
    assert again.order is not None
    assert again.order.batch_id == admitted.order.batch_id


async def test_another_attempt_creates_no_second_batch(fixture: SchedulingFixture) -> None:
    await fixture.schedule()
    first = await fixture.created()
    fixture.database.rows.files.clear()  # what was admitted once is not checked again
    assert await fixture.created() == first
    assert len(fixture.database.rows.batches) == 1


async def test_each_run_has_a_batch_of_its_own(fixture: SchedulingFixture) -> None:
    await fixture.schedule()
    ids = [(await fixture.created(run)).batch_id for run in (RUN, LATER)]
    assert len(set(ids)) == 2
    runs = await fixture.database.schedules.runs("t", "schedule_1", 10)
    assert [run.batch_id for run in runs] == ids[::-1]


async def test_a_deleted_file_is_the_reason_for_no_batch(fixture: SchedulingFixture) -> None:
    await fixture.schedule()
    fixture.database.rows.files.clear()
    assert "'file-1' was deleted" in await fixture.refused("file_not_found")


async def test_a_disabled_tenant_gets_no_batch(fixture: SchedulingFixture) -> None:
    await fixture.schedule()
    await fixture.database.tenants.create("t", START)
    await fixture.database.tenants.disable("t", START)
    assert "disabled" in await fixture.refused("tenant_disabled")


@pytest.mark.parametrize("times", [{"revoked_at": START}, {"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}])
async def test_a_key_that_is_no_longer_valid_gets_no_batch(
    fixture: SchedulingFixture, times: dict[str, datetime]
) -> None:
    key = await create_key(fixture.database, "t", **times)  # pyright: ignore[reportArgumentType] - the values differ by name
    key_id = fixture.database.rows.api_keys[key.prefix].key.id
    await fixture.schedule(caller=Caller(key_id=key_id))
    assert key_id in await fixture.refused("key_revoked")


async def test_a_valid_key_gets_a_batch_with_the_headers_that_are_still_passed_on() -> None:
    fixture = SchedulingFixture(pass_headers="X-Team")
    key = await create_key(fixture.database, "t")
    key_id = fixture.database.rows.api_keys[key.prefix].key.id
    await fixture.schedule(caller=Caller(key_id=key_id, headers={"x-team": "a", "x-old": "b"}))
    assert (await fixture.created()).policy.caller == Caller(key_id=key_id, headers={"x-team": "a"})


async def test_a_full_quota_of_live_batches_is_the_reason_for_no_batch() -> None:
    fixture = SchedulingFixture(max_live_batches=1)
    await fixture.schedule()
    await fixture.created(LATER)
    result = await fixture.run()
    assert (result.order, "at most 1" in result.refusal) == (None, True)
    runs = await fixture.database.schedules.runs("t", "schedule_1", 10)
    assert [run.code for run in runs] == [None, "rate_limit_exceeded"]


async def test_a_priority_that_was_taken_away_is_the_reason_for_no_batch(fixture: SchedulingFixture) -> None:
    await fixture.schedule(priority=5)
    await fixture.database.quotas.change("t", {"max_priority": 2}, START)
    assert "above 2" in await fixture.refused("invalid_value")


async def test_a_schedule_that_only_temporal_has_is_deleted_there(fixture: SchedulingFixture) -> None:
    gone = ScheduledBatch(code="schedule_deleted", refusal="The schedule was deleted.")
    assert await fixture.run() == gone
    assert fixture.schedules.stored == {}
    fixture.schedules.failing = TemporalUnavailable("away")
    assert (await fixture.run()).order is None


async def test_an_unavailable_database_is_retried(fixture: SchedulingFixture) -> None:
    await fixture.schedule()
    fixture.database.rows.failing = DatabaseUnavailable("away")
    with pytest.raises(ApplicationError) as failed:
        await fixture.run()
    assert (failed.value.type, failed.value.non_retryable) == (Failure.DATABASE_UNAVAILABLE, False)


async def test_heartbeats_are_sent_while_the_database_does_not_answer(
    fixture: SchedulingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them, a worker that was lost in such an activity would be noticed only after a minute."""
    await fixture.schedule()
    activities, database = fixture.activities, fixture.database
    environment = SlowDatabaseEnvironment(monkeypatch)
    environment.slow_down(database.schedules, "get")
    environment.slow_down(database.schedules, "record_run")
    batch = await environment.run(activities.admit_scheduled_batch, RUN)
    assert batch.order is not None
    await environment.run(activities.record_scheduled_run, RunRecord(run=RUN, batch=batch))
    environment.slow_down(database.batches, "request_cancel")
    await environment.run(activities.record_scheduled_cancel, batch.order)
    environment.slow_down(database.batches, "get")
    with pytest.raises(ApplicationError, match="not ended"):
        await environment.run(activities.end_of_scheduled_batch, batch.order)


async def test_a_batch_that_is_being_cancelled_is_shown_so(fixture: SchedulingFixture) -> None:
    await fixture.schedule()
    order = await fixture.created()
    await ActivityEnvironment().run(fixture.activities.record_scheduled_cancel, order)
    (run,) = await fixture.database.schedules.runs("t", "schedule_1", 10)
    assert run.status is BatchStatus.CANCELLING


async def test_the_end_of_a_batch_is_awaited_without_occupying_a_worker(fixture: SchedulingFixture) -> None:
    await fixture.schedule()
    order = await fixture.created()
    wait = fixture.activities.end_of_scheduled_batch
    with pytest.raises(ApplicationError) as live:
        await ActivityEnvironment().run(wait, order)
    assert (live.value.type, live.value.non_retryable) == (Failure.BATCH_LIVE, False)
    ended = await fixture.database.batch_ends.end_without_files(
        "t", order.batch_id, BatchStatus.CANCELLED, [], after(60)
    )
    assert ended[1]
    assert await ActivityEnvironment().run(wait, order) is BatchStatus.CANCELLED
    fixture.database.rows.batches.clear()
    assert await ActivityEnvironment().run(wait, order) is None


ALLOWED = {"t": {"read": ["s3://inputs/t/"], "write": ["s3://out/t/"]}}


async def test_each_batch_of_an_object_has_a_copy_of_its_own() -> None:
    fixture = SchedulingFixture(data_locations=ALLOWED)
    await fixture.schedule(input_file_id="file-unused", input_location="s3://inputs/t/a.jsonl")
    first, second = await fixture.created(), await fixture.created(LATER)
    assert (first.input_location, second.input_location) == ("s3://inputs/t/a.jsonl",) * 2
    assert len({first.input_file_id, second.input_file_id, "file-unused"}) == 3
    assert await fixture.created() == first  # another attempt


@pytest.mark.parametrize(
    "template",
    [
        {"input_location": "s3://inputs/other/a.jsonl"},
        {"input_location": "s3://inputs/t/a.jsonl", "output_location": "s3://out/other"},
        {"output_location": "s3://out/other"},
    ],
)
async def test_a_location_that_the_operator_has_removed_is_the_reason_of_the_run(
    template: dict[str, str],
) -> None:
    fixture = SchedulingFixture(data_locations=ALLOWED)
    await fixture.schedule(**template)
    assert "may no longer" in await fixture.refused("location_not_allowed")


@pytest.mark.parametrize("is_unavailable", [False, True])
async def test_a_run_applies_a_change_that_was_interrupted(
    fixture: SchedulingFixture, is_unavailable: bool
) -> None:
    await fixture.schedule()
    row = await fixture.database.schedules.get("t", "schedule_1")
    assert row is not None
    fixture.schedules.stored[row.id] = StoredSchedule(row)
    template = row.template.model_copy(update={"metadata": {"run": "hourly"}})
    changed = row.model_copy(update={"cron": "0 * * * *", "template": template})
    await fixture.database.schedules.update(row.model_copy(update={"pending": changed}))
    fixture.schedules.failing = TemporalUnavailable("away") if is_unavailable else None
    order = await fixture.created()
    assert order.metadata == {"run": "nightly" if is_unavailable else "hourly"}
    expected = row.cron if is_unavailable else changed.cron
    stored = await fixture.database.schedules.get("t", "schedule_1")
    assert stored is not None
    assert (stored.cron, fixture.schedules.stored[row.id].spec.cron) == (expected, expected)
