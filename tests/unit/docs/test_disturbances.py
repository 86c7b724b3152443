"""The page about disturbances is the sum over all records of the ledger, and names what was missed."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.chaos.ledger import CallRecord, EventRecord, RecoveryRecord, RunRecord, append, read
from tests.chaos.page import percentile, text
from tests.chaos.run import UNATTENDED, Size

GOOD = RunRecord(
    seed=1,
    began_at=datetime(2026, 11, 27, 12, tzinfo=UTC),
    commit="abc1234",
    seconds=1800,
    storage="S3",
    heartbeat_timeout_seconds=10,
    disturbances={"API killed": 3_000, "worker killed": 2_500},
    killed_processes=5_700,
    faulty_responses=40,
    batches={"completed": 7, "expired": 1},
    lines=1_000,
    lost=0,
    doubled=0,
    sent_again=0,
    answered_again=12,
    recoveries=[RecoveryRecord(["API killed", "worker killed"], 0.5, 4.0)],
    events=EventRecord(expected=8, lost=0, doubled=0, repeated=1, attempts=17, seconds=[5.0]),
    calls=CallRecord(acknowledged=20, lost=0, doubled=0, sent_again=0, seconds=[6.0]),
    load=1.5,
    cores=2,
    broken=[],
)
BAD = GOOD.model_copy(
    update={
        "seed": 2,
        "lost": 3,
        "doubled": 2,
        "sent_again": 1,
        "recoveries": [RecoveryRecord(["worker killed"], 2.0, 26.0)],
        "events": GOOD.events.model_copy(update={"lost": 4, "doubled": 5}),
        "calls": GOOD.calls.model_copy(update={"lost": 6, "doubled": 7, "sent_again": 8}),
        "broken": ["batch_1 (5 lines) 3 lines lost, 2 doubled"],
    }
)


def test_the_page_shows_the_sum_over_all_records() -> None:
    page = text([GOOD, GOOD.model_copy(update={"seed": 3})])
    for row in (
        "| runs | 2 |  |  |",
        "| hours of disturbances | 1.00 |  |  |",
        "| disturbances | 11,000 | 10,000 | met |",
        "| lines | 2,000 |  |  |",
        "| lines lost | 0 | 0 | met |",
        "| progress of every running batch | 4.0 | 4.0 | 4.0 | 25 | met |",
        "| API killed | 6,000 | 0.5 | 0.5 | 0.5 | 4.0 | 4.0 | 4.0 |",
        "| 2026-11-27 | abc1234 | 1.5 to 1.5 on 2 cores | 2 | 1.00 | 11,000 | 2,000 | 0 | 0 | 0 | 40 | 0 "
        "| 4.0 | 4.0 |",
    ):
        assert row in page.splitlines()
    assert "missed" not in page


def test_the_page_shows_each_missed_aim_and_each_broken_promise() -> None:
    page = text([BAD])
    for row in (
        "| disturbances | 5,500 | 10,000 | **missed** |",
        "| lines lost | 3 | 0 | **missed** |",
        "| lines doubled | 2 | 0 | **missed** |",
        "| settled lines sent again | 1 | 0 | **missed** |",
        "| events lost | 4 | 0 | **missed** |",
        "| events with two ids | 5 | 0 | **missed** |",
        "| calls lost | 6 | 0 | **missed** |",
        "| calls answered twice | 7 | 0 | **missed** |",
        "| calls sent again after their end | 8 | 0 | **missed** |",
        "| runs with a broken promise | 1 | 0 | **missed** |",
        "| progress of every running batch | 26.0 | 26.0 | 26.0 | 25 | **missed** |",
        "- Seed 2, 2026-11-27, abc1234: `batch_1 (5 lines) 3 lines lost, 2 doubled`",
    ):
        assert row in page.splitlines()


def test_a_recovery_from_a_model_that_hung_has_the_time_of_its_requests() -> None:
    hung = RecoveryRecord(["model hangs", "worker killed"], 2.0, 34.0)
    page = text([GOOD.model_copy(update={"recoveries": [*GOOD.recoveries, hung]})])
    assert "| progress of every running batch | 4.0 | 4.0 | 4.0 | 25 | met |" in page.splitlines()
    assert "| the same, if a model hung | 34.0 | 34.0 | 34.0 | 35 | met |" in page.splitlines()


def test_the_page_describes_the_runs_of_the_ledger() -> None:
    described = Size(workers=3, lanes=(*8 * (30,), *3 * (400,), 2_000), callers=3, together=8)
    assert described == UNATTENDED._replace(patience_seconds=described.patience_seconds), (
        "change the second paragraph of the page, too"
    )


def test_a_page_without_records_misses_its_aim() -> None:
    assert "| disturbances | 0 | 10,000 | **missed** |" in text([])


def test_records_are_read_as_they_were_appended(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    assert read(ledger) == []
    append(GOOD, ledger)
    append(BAD, ledger)
    assert read(ledger) == [GOOD, BAD]


@pytest.mark.parametrize(("percent", "expected"), [(50, 50), (99, 99), (100, 100)])
def test_a_percentile_is_the_smallest_value_that_this_share_does_not_exceed(
    percent: float, expected: float
) -> None:
    assert percentile(range(100, 0, -1), percent) == expected
