"""How soon Temporal starts the next attempt of an activity whose worker was lost."""

from datetime import timedelta

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityConfig

from batchwright.contracts.temporal_payloads.batch_schedules import ScheduleRef
from batchwright.contracts.temporal_payloads.execution import ModelRun
from batchwright.workflows import options
from tests.integration.database.rows import START, an_order
from tests.workflows.stub_activities import share

ORDER = an_order()
RUN = ModelRun.of(ORDER, share("m", 1), "ingest/1")
TURNS = 50


def test_a_slice_waits_no_longer_for_its_next_attempt_because_it_has_had_many_turns() -> None:
    """Each turn counts as an attempt, so the longest pause follows when a worker is lost."""
    assert pause_after(TURNS, options.slice_options(RUN, 0, START)) <= timedelta(seconds=2)


def test_every_activity_of_a_batch_has_the_heartbeat_timeout_of_its_batch() -> None:
    """Otherwise a lost worker is only noticed after a minute."""
    for config in (
        options.ingestion_options(ORDER, START),
        options.finalization_options(ORDER, "completed", waits_for_storage=True),
        options.insert_row_options(ORDER),
        options.end_options(ORDER, "failed"),
        options.slice_options(RUN, 0, START),
        options.output_copy_options(ORDER),
        options.output_copy_end_options(ORDER),
    ):
        expected = timedelta(seconds=ORDER.policy.heartbeat_timeout_seconds)
        assert config.get("heartbeat_timeout") == expected, config.get("summary")


def test_a_worker_that_is_lost_in_an_activity_of_a_schedule_is_noticed_after_ten_seconds() -> None:
    schedule = ScheduleRef(tenant="t", schedule_id="schedule_1")
    for config in (
        options.scheduled_batch_options(schedule),
        options.scheduled_run_options(schedule, "record the run"),
    ):
        assert config.get("heartbeat_timeout") == timedelta(seconds=10), config.get("summary")


def pause_after(attempts: int, config: ActivityConfig) -> timedelta:
    policy = config.get("retry_policy")
    assert isinstance(policy, RetryPolicy)
    assert policy.maximum_interval is not None
    grown = policy.initial_interval.total_seconds() * policy.backoff_coefficient ** (attempts - 1)
    return timedelta(seconds=min(grown, policy.maximum_interval.total_seconds()))
