"""What is counted of requests, and how it is added up over workers."""

import pytest

from batchwright.contracts.openai import Usage
from batchwright.rules.retries import Category
from batchwright.rules.traffic import LaneTraffic, Share, Traffic, added_up
from batchwright.telemetry.families.declare import S2_SECONDS, S2_TOKENS
from batchwright.telemetry.families.microbatch import SHARES
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.traffic import GROUPED_CHAT, TrafficMeter
from worker.steps import show_slots

A, B = "http://a", "http://b"


def lane(model: str, backend: str, requests: int, seconds: float = 0.0, pending: int = 0) -> LaneTraffic:
    return LaneTraffic(
        model=model, backend=backend, requests=requests, errors=1, seconds=seconds, pending=pending
    )


def test_workers_are_added_up_by_backend_and_by_model() -> None:
    told = [lane("m", A, 2, 1.0), lane("m", B, 1, 3.5, pending=4), lane("n", A, 6, 1.0, pending=1)]
    assert added_up(told, [B, A], ["m", "n"]) == Traffic(
        requests=9,
        errors=3,
        backends=[Share(A, 8, 250.0, 1), Share(B, 1, 3500.0, 4)],
        models=[Share("n", 6, 1000 / 6, 1), Share("m", 3, 1500.0, 4)],
    )


def test_what_is_registered_is_shown_before_its_first_request_and_what_is_gone_is_not() -> None:
    found = added_up([lane("gone", "http://gone", 5)], [A], ["m"])
    assert found == Traffic(5, 1, [Share(A, 0, 0.0, 0)], [Share("m", 0, 0.0, 0)])


class Meter:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.meter = TrafficMeter(self.metrics)

    def ended(self, status: int, category: Category = Category.NONE, chat: str = "") -> None:
        self.meter.ended("m", A, status=status, category=category, seconds=0.5, chat=chat)

    def counted(self, name: str, **labels: str) -> float | None:
        self.meter.show()
        return self.metrics.registry.get_sample_value(f"batchwright_{name}", labels)


def test_a_request_counts_by_its_status_and_with_its_time() -> None:
    one = Meter()
    one.ended(200)
    one.ended(200)
    one.ended(500, Category.UPSTREAM_5XX)
    one.ended(0, Category.TIMEOUT)
    assert one.counted("requests_total", model="m", backend=A, status="200") == 2
    assert one.counted("requests_total", model="m", backend=A, status="none") == 1
    assert one.counted("request_duration_seconds_count", model="m", backend=A) == 4
    assert one.counted("errors_total", model="m", error_type="backend_error") == 1
    assert one.counted("errors_total", model="m", error_type="timeout") == 1
    [told] = one.meter.told({("m", A): 3, ("m", B): 0})
    assert told == LaneTraffic(model="m", backend=A, requests=4, errors=2, seconds=2.0, pending=3)


def test_a_line_that_is_refused_for_its_own_fault_is_no_error_of_the_backend() -> None:
    one = Meter()
    one.ended(400, Category.INVALID_REQUEST)
    one.ended(503, Category.SERVICE_UNAVAILABLE)
    assert one.counted("errors_total", model="m", error_type="other") == 1
    assert one.counted("errors_total", model="m", error_type="backend_error") == 1


@pytest.mark.parametrize(
    ("status", "text"),
    [(0, "none"), (100, "100"), (599, "599"), (99, "other"), (600, "other"), (999, "other")],
)
def test_statuses_that_http_does_not_have_share_a_label(status: int, text: str) -> None:
    one = Meter()
    one.ended(status, Category.UNKNOWN)
    assert one.counted("requests_total", model="m", backend=A, status=text) == 1


def test_what_is_under_way_is_told_before_it_has_an_end() -> None:
    assert Meter().meter.told({("m", A): 1}) == [LaneTraffic(model="m", backend=A, pending=1)]


def test_a_slice_that_found_nobody_counts_as_an_error_of_its_model() -> None:
    one = Meter()
    for reason in ("no_backend", "capacity", "authentication", "permission", "retry"):
        one.meter.put_off("m", reason)
    assert one.counted("errors_total", model="m", error_type="no_backend") == 1
    assert one.counted("errors_total", model="m", error_type="no_healthy_backend") == 3


def test_chats_count_by_how_they_are_sent() -> None:
    one = Meter()
    one.ended(500, Category.UPSTREAM_5XX, GROUPED_CHAT)
    one.ended(200)
    assert one.counted("chat_items_executed_total", mode="sync_microbatch", status="error") == 1
    assert one.counted("chat_items_executed_total", mode="concurrent", status="success") is None


def test_tokens_count_where_the_backend_tells_them() -> None:
    one = Meter()
    one.meter.used("m", A, [Usage(input_tokens=300)])
    assert one.counted("request_tokens_bucket", model="m", backend=A, type="prompt", le="500.0") == 1
    assert one.counted("request_tokens_count", model="m", backend=A, type="completion") is None


def test_the_saturation_is_the_part_of_the_slots_that_is_in_use() -> None:
    one = Meter()
    show_slots(one.metrics, lambda: 8)
    one.metrics.active_workers.inc(2)
    assert (one.counted("worker_saturation_ratio"), one.counted("total_workers")) == (0.25, 8)
    show_slots(one.metrics, lambda: 0)
    assert one.counted("worker_saturation_ratio") == 0


@pytest.mark.parametrize(
    ("buckets", "bounds"),
    [
        (S2_SECONDS, (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)),
        (S2_TOKENS, (10, 50, 100, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)),
        (SHARES, (1, 2, 4, 8, 16, 32, 64)),
    ],
    ids=["S2-R1 durations", "S2-R1 tokens", "S1-259 lines in a request"],
)
def test_buckets_are_those_of_the_sources(buckets: tuple[float, ...], bounds: tuple[float, ...]) -> None:
    assert buckets == bounds
