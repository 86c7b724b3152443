"""The pages of a batch show its timeline, its completion window, and remedies for waiting reasons."""

from collections.abc import AsyncGenerator

import pytest

from batchwright.api.ui.batch_view import is_live, remedy, throughput_chart, timeline, window_bar
from batchwright.contracts.api_objects.openai import (
    BatchObject,
    OutputLocation,
    ThroughputSample,
    WaitingObject,
)
from batchwright.contracts.temporal_payloads.batch import SCHEDULED
from batchwright.contracts.terms import BatchStatus, Quota
from batchwright.rules.tenants.quotas import QuotaExcess
from tests.fakes.api import open_api


@pytest.fixture
async def batch() -> AsyncGenerator[BatchObject]:
    async with open_api() as api:
        made = await api.create()
        yield made.model_copy(update={"created_at": 100, "expires_at": 300, "in_progress_at": 110})


@pytest.mark.parametrize("status", [BatchStatus.FINALIZING, BatchStatus.CANCELLING])
def test_the_state_that_a_batch_is_in_is_the_last_step_of_its_timeline(
    batch: BatchObject, status: BatchStatus
) -> None:
    live = batch.model_copy(update={"status": status, f"{status}_at": 150})
    assert [(step.name, step.at) for step in timeline(live)][-1] == (status.value, 150)


def test_the_end_of_a_batch_is_the_last_step_of_its_timeline(batch: BatchObject) -> None:
    ended = batch.model_copy(
        update={"status": BatchStatus.COMPLETED, "finalizing_at": 150, "completed_at": 160}
    )
    assert [step.name for step in timeline(ended)] == ["created", "in progress", "finalizing", "completed"]


def test_the_window_of_a_batch_that_starts_later_counts_from_its_start(batch: BatchObject) -> None:
    later = batch.x_batchwright.model_copy(update={"start_at": 200})
    scheduled = batch.model_copy(update={"x_batchwright": later})
    assert window_bar(scheduled, 150).elapsed == 0
    assert window_bar(scheduled, 250).elapsed == 50
    assert window_bar(batch, 200).elapsed == 50


def test_the_bar_of_a_window_that_is_over_is_full_and_not_longer(batch: BatchObject) -> None:
    assert window_bar(batch, 299).elapsed == 99.5
    assert window_bar(batch, 300).elapsed == 100
    assert window_bar(batch, 500).elapsed == 100


def test_the_page_of_an_ended_batch_changes_until_its_files_are_copied(batch: BatchObject) -> None:
    def is_live_with(file: str | None, state: str | None) -> bool:
        copy = OutputLocation(url="s3://out/blue", state=state, error=None) if state else None
        more = batch.x_batchwright.model_copy(update={"output_location": copy})
        update = {"status": BatchStatus.COMPLETED, "output_file_id": file, "x_batchwright": more}
        return is_live(batch.model_copy(update=update))

    assert is_live(batch)
    assert is_live_with("file-1", "pending")
    assert not is_live_with("file-1", "written")
    assert not is_live_with("file-1", "failed")
    assert not is_live_with("file-1", None)
    assert not is_live_with(None, "pending")  # the batch has failed before it had files


def _remedy(reason: str) -> str:
    return remedy(WaitingObject(reason=reason, model=None, since=1))


def test_reasons_of_batches_that_are_paused_or_not_due_have_their_own_remedies() -> None:
    assert "Resume" in _remedy("paused")
    assert "starts at its time" in _remedy(SCHEDULED)
    assert "Resume" not in _remedy('the backend accepts no requests now: it returned "endpoint is paused"')


def test_a_batch_that_waits_for_a_quota_is_told_to_wait_for_other_batches() -> None:
    excess = QuotaExcess(Quota.ENQUEUED_LINES, limit=10, used=8, requested=5)
    assert "other batches have ended" in _remedy(excess.waiting_reason)


def samples(*pairs: tuple[int, int]) -> list[ThroughputSample]:
    return [ThroughputSample(at=at, lines=lines) for at, lines in pairs]


def test_a_chart_shows_each_rate_over_the_time_in_which_it_was_measured() -> None:
    chart = throughput_chart(samples((100, 0), (110, 100), (110, 110), (130, 110), (150, 210)))
    assert chart is not None
    assert chart.path == "M0 100V0H200V100H600V50H1000V100Z"
    assert (chart.peak, chart.average, chart.start, chart.end) == (10, 4.2, 100, 150)


def test_lines_that_are_sent_again_are_no_negative_rate() -> None:
    chart = throughput_chart(samples((0, 50), (10, 40), (20, 40)))
    assert chart is not None
    assert (chart.path, chart.peak, chart.average) == ("M0 100V100H500V100H1000V100Z", 0, 0)


@pytest.mark.parametrize("pairs", [[], [(0, 0)], [(0, 0), (10, 5)], [(0, 0), (0, 3), (10, 5)]])
def test_too_few_samples_are_no_chart(pairs: list[tuple[int, int]]) -> None:
    assert throughput_chart(samples(*pairs)) is None
