"""The order of a tenant's batches: how priorities share permits, and Temporal's fairness keys."""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.rules.dispatch.batch_ranking import (
    BatchSchedule,
    WaitingBatch,
    fairness_key_of,
    is_late,
    priority_weight,
    size_group,
)


def test_each_priority_has_twice_the_share_of_the_next_lower_one() -> None:
    assert [priority_weight(priority) for priority in (1, 2, 3, 4, 5)] == [0.25, 0.5, 1.0, 2.0, 4.0]


@pytest.mark.parametrize("letter", ["a", "ü", "漢"])
def test_a_fairness_key_fits_the_limit_of_temporal_and_differs_between_tenants(letter: str) -> None:
    keys = [fairness_key_of(letter * 62 + last, 5, "s") for last in ("x", "y")]
    assert all(len(key.encode()) <= 64 for key in keys)
    assert keys[0] != keys[1]


@pytest.mark.parametrize(("hours", "late"), [(0, False), (18, False), (18.01, True), (24, True), (25, True)])
def test_a_batch_is_late_in_the_last_quarter_of_its_window(hours: float, late: bool) -> None:
    created_at = datetime(2026, 3, 1, tzinfo=UTC)
    now = created_at + timedelta(hours=hours)
    assert is_late(now, created_at, created_at + timedelta(hours=24)) is late


def test_batches_are_grouped_by_their_size_and_late_ones_are_a_group_of_their_own() -> None:
    lines = (1, 100, 101, 1000, 1001, 10_000, 10_001, 10**6)
    assert "".join(size_group(number, is_late=False) for number in lines) == "ssmmllxx"
    assert {size_group(number, is_late=True) for number in lines} == {"u"}


class Batches:
    """Batches of one tenant and model, as the database lists them every two seconds."""

    def __init__(self) -> None:
        self.schedule, self.now = BatchSchedule(), 1000.0
        self.lines: dict[str, int] = {}
        self.hours: dict[str, float] = {}  # until the deadline, of a window of 24 hours
        self.priorities: dict[str, int] = {}
        self.paused: set[str] = set()

    def add(self, name: str, lines: int, hours: float = 24.0, priority: int = 3) -> None:
        self.lines[name], self.hours[name], self.priorities[name] = lines, hours, priority

    def read(self) -> list[str]:
        """Compute the ranks of the batches again, as a worker does after it has read them. Return the batches
        by rank.
        """
        batches = [
            WaitingBatch(
                "m",
                "t",
                name,
                self.priorities[name],
                lines,
                1000.0 + (self.hours[name] - 24.0) * 3600.0,
                1000.0 + self.hours[name] * 3600.0,
            )
            for name, lines in self.lines.items()
            if lines > 0 and name not in self.paused
        ]
        self.schedule.update(batches, self.now, self.paused)
        ranks = self.schedule.ranks("m")
        return sorted(ranks, key=ranks.__getitem__)

    def settle(self, name: str, rate: float) -> None:
        """Let a batch settle `rate` lines per second for one minute."""
        for _ in range(30):
            self.now += 2.0
            self.lines[name] -= int(2 * rate)
            self.read()


def test_batches_are_in_the_order_of_their_lines_left() -> None:
    batches = Batches()
    for name, lines in (("large", 5000), ("small", 20), ("medium", 500)):
        batches.add(name, lines)
    assert batches.read() == ["small", "medium", "large"]
    batches.lines["large"] = 10
    assert batches.read() == ["large", "small", "medium"]


def test_a_batch_in_the_last_quarter_of_its_window_goes_first() -> None:
    batches = Batches()
    batches.add("small", 20)
    batches.add("soon", 5000, hours=5.9)
    batches.add("sooner", 9000, hours=5.8)
    batches.add("not yet", 5000, hours=6.1)
    assert batches.read() == ["sooner", "soon", "small", "not yet"]


def test_a_batch_that_needs_most_of_its_window_at_the_present_rate_goes_first() -> None:
    batches = Batches()
    batches.add("small", 50_000)
    batches.add("large", 700_000)
    assert batches.read() == ["small", "large"]
    batches.settle("small", rate=10)  # 700,000 lines take 19.4 hours
    assert batches.read() == ["large", "small"]


def test_lines_of_batches_that_end_between_two_reads_count_for_the_rate() -> None:
    batches = Batches()
    batches.add("medium", 50_000)
    batches.add("large", 700_000)
    batches.read()
    for number in range(30):
        batches.now += 2.0
        batches.lines[f"small {number - 1}"] = 0
        batches.add(f"small {number}", 20)
        batches.read()
    batches.lines["small 29"] = 0
    assert batches.read() == ["large", "medium"]  # 10 lines per second: 700,000 take 19.4 hours


def test_lines_of_batches_that_stop_with_lines_left_do_not_count_for_the_rate() -> None:
    batches = Batches()
    batches.add("small", 50_000)
    batches.add("large", 850_000)
    batches.add("paused", 500_000)
    batches.add("cancelled", 500_000)
    batches.add("expired", 500_000, hours=61 / 3600)
    batches.settle("small", rate=10)
    batches.paused.add("paused")
    batches.lines["cancelled"] = batches.lines["expired"] = 0
    batches.now += 2.0
    assert batches.read() == ["large", "small"]  # with such a rate, the large batch would not be at risk


def test_a_clock_that_is_set_back_keeps_the_order() -> None:
    batches = Batches()
    batches.add("large", 5000)
    batches.add("small", 20)
    batches.read()
    batches.now -= 13 * 3600.0
    assert batches.read() == ["small", "large"]


def test_a_batch_that_cannot_end_in_time_is_ranked_by_its_lines() -> None:
    batches = Batches()
    batches.add("small", 50_000)
    batches.add("hopeless", 900_000)
    batches.read()
    batches.settle("small", rate=10)  # 900,000 lines take 25 hours
    assert batches.read() == ["small", "hopeless"]


def test_a_batch_that_is_not_known_yet_comes_before_large_ones_and_after_those_at_risk() -> None:
    batches = Batches()
    batches.add("large", 5000)
    batches.add("soon", 5000, hours=1.0)
    batches.read()
    ranks = batches.schedule.ranks("m")
    assert ranks["soon"] < ranks["new"] < ranks["large"]
    assert batches.schedule.ranks("another model")["new"] == ranks["new"]


def test_the_first_batch_of_each_tenant_and_priority_is_known() -> None:
    batches = Batches()
    batches.add("a", 500, priority=5)
    batches.add("b", 20)
    batches.add("c", 10)
    batches.read()
    assert sorted(batches.schedule.ranks("m").first) == [("t", "a"), ("t", "c")]


def test_the_only_batch_of_a_tenant_for_a_model_is_not_among_the_first() -> None:
    def waiting(model: str, tenant: str, name: str) -> WaitingBatch:
        return WaitingBatch(model, tenant, name, 3, 10, 0.0, 86_400.0)

    schedule = BatchSchedule()
    batches = [waiting("m", "t", "a"), waiting("m", "t", "b"), waiting("m", "u", "c"), waiting("n", "t", "a")]
    schedule.update(batches, 1000.0)
    assert schedule.ranks("m").first == [("t", "a")]
    assert schedule.ranks("n").first == []
