"""Activities of a batch have a fairness key of its tenant in Temporal, with the weight of the tenant."""

import pytest
from temporalio.common import Priority
from temporalio.workflow import ActivityConfig

from batchwright.contracts.temporal_payloads.batch import MAX_PRIORITY, MIN_PRIORITY, BatchOrder
from batchwright.contracts.temporal_payloads.execution import ModelRun
from batchwright.workflows import options
from tests.integration.database.rows import START, an_order
from tests.workflows.stub_activities import share

ORDER = an_order(tenant="acme", weight=2.5, priority=4)
RUN = ModelRun.of(ORDER, share("m", 1), "ingest/1")
FIRST = 1


def test_a_slice_is_queued_under_its_tenant_and_priority_with_the_weight_of_the_tenant() -> None:
    assert options.slice_options(RUN, 0, START).get("priority") == Priority(None, "acme/4s", 2.5)


@pytest.mark.parametrize(
    ("lines", "key"), [(100, "acme/4s"), (101, "acme/4m"), (1_001, "acme/4l"), (10_001, "acme/4x")]
)
def test_slices_of_batches_of_very_different_size_have_different_keys(lines: int, key: str) -> None:
    run = RUN.model_copy(update={"lines": lines})
    assert options.slice_options(run, 0, START).get("priority") == Priority(None, key, 2.5)


def test_slices_that_are_scheduled_in_the_last_quarter_of_the_window_have_a_key_of_their_own() -> None:
    window = ORDER.deadline - ORDER.created_at
    for part, key in ((0.74, "acme/4s"), (0.76, "acme/4u")):
        late = ORDER.created_at + part * window
        assert options.slice_options(RUN, 0, late).get("priority") == Priority(None, key, 2.5)


def test_a_slice_is_queued_under_the_fresh_key_that_its_batch_was_given() -> None:
    policy = RUN.policy.model_copy(update={"fairness_key": "acme/2"})
    run = RUN.model_copy(update={"policy": policy})
    assert options.slice_options(run, 0, START).get("priority") == Priority(None, "acme/2/4s", 2.5)


def test_a_weight_that_was_set_at_run_time_before_the_batch_was_created_replaces_that_of_the_settings() -> (
    None
):
    policy = ORDER.policy.model_copy(update={"fairness_weight": 0.5})
    order = ORDER.model_copy(update={"policy": policy})
    run = ModelRun.of(order, share("m", 1), "ingest/1")
    assert options.slice_options(run, 0, START).get("priority") == Priority(None, "acme/4s", 0.5)
    assert options.ingestion_options(order, START).get("priority") == Priority(None, "acme/4", 0.5)


def test_ingestion_is_queued_under_its_tenant_and_priority_with_the_weight_of_the_tenant() -> None:
    assert options.ingestion_options(ORDER, START).get("priority") == Priority(None, "acme/4", 2.5)


def test_no_priority_changes_the_weight_of_the_tenant_in_the_queue() -> None:
    runs = [RUN.model_copy(update={"priority": each}) for each in range(MIN_PRIORITY, MAX_PRIORITY + 1)]
    queued = [options.slice_options(run, 0, START).get("priority") for run in runs]
    assert [each and each.fairness_weight for each in queued] == [2.5] * 5


@pytest.mark.parametrize("priority", range(MIN_PRIORITY, MAX_PRIORITY + 1))
def test_no_priority_of_a_batch_lets_temporal_start_all_its_tasks_before_those_of_others(
    priority: int,
) -> None:
    order: BatchOrder = ORDER.model_copy(update={"priority": priority})
    run = ModelRun.of(order, share("m", 1), "ingest/1")
    for step in (options.ingestion_options(order, START), options.slice_options(run, 0, START)):
        queued = step.get("priority")
        assert queued is not None
        assert queued.priority_key is None


@pytest.mark.parametrize(
    "step",
    [
        options.finalization_options(ORDER, "completed", waits_for_storage=True),
        options.end_options(ORDER, "failed"),
    ],
)
def test_steps_that_end_a_batch_come_first_within_the_share_of_their_tenant(step: ActivityConfig) -> None:
    assert step.get("priority") == Priority(FIRST, "acme", 2.5)
