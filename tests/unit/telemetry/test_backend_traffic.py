"""Counters of requests by model and backend, and their sums over workers."""

import pytest

from batchwright.contracts.terms import Usage
from batchwright.rules.dispatch.retry_policy import Category
from batchwright.rules.worker_stats import FleetTraffic, TrafficShare, UpstreamTraffic, sum_traffic
from batchwright.telemetry.backend_traffic import CHAT, GROUPED_CHAT, BackendTraffic
from batchwright.telemetry.families.factory import REQUEST_SECONDS, REQUEST_TOKENS
from batchwright.telemetry.families.requests import GROUP_SIZES
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.interceptors.activity_metrics import register_slot_gauges

A, B = "http://a", "http://b"


def lane(model: str, backend: str, requests: int, seconds: float = 0.0, pending: int = 0) -> UpstreamTraffic:
    return UpstreamTraffic(
        model=model, backend=backend, requests=requests, errors=1, seconds=seconds, pending=pending
    )


def test_workers_are_added_up_by_backend_and_by_model() -> None:
    traffic = [lane("m", A, 2, 1.0), lane("m", B, 1, 3.5, pending=4), lane("n", A, 6, 1.0, pending=1)]
    assert sum_traffic(traffic, [B, A], ["m", "n"]) == FleetTraffic(
        requests=9,
        errors=3,
        backends=[TrafficShare(A, 8, 250.0, 1), TrafficShare(B, 1, 3500.0, 4)],
        models=[TrafficShare("n", 6, 1000 / 6, 1), TrafficShare("m", 3, 1500.0, 4)],
        open_circuits=[],
    )


def test_registered_backends_are_shown_before_their_first_request_and_removed_ones_are_not() -> None:
    found = sum_traffic([lane("gone", "http://gone", 5)], [A], ["m"])
    assert found == FleetTraffic(5, 1, [TrafficShare(A, 0, 0.0, 0)], [TrafficShare("m", 0, 0.0, 0)], [])


def test_tokens_and_open_circuits_of_workers_are_added_up() -> None:
    open_at_a = lane("m", A, 1).model_copy(update={"open_circuits": 1, "tokens_per_second": 20.0})
    found = sum_traffic([open_at_a, open_at_a, lane("m", B, 1)], [A, B], ["m"])
    assert found.models == [TrafficShare("m", 3, 0.0, 0, tokens_per_second=40.0)]
    assert found.open_circuits == [("m", A, 2)]


class TrafficFixture:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.traffic = BackendTraffic(self.metrics)

    def ended(self, status: int, category: Category = Category.NONE, chat: str = "") -> None:
        self.traffic.record("m", A, [0.5], status=status, category=category, chat=chat)

    def counted(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"batchwright_{name}", labels)


def test_a_request_counts_by_its_status_and_with_its_time() -> None:
    one = TrafficFixture()
    one.ended(200)
    one.ended(200)
    one.ended(500, Category.UPSTREAM_5XX)
    one.ended(0, Category.TIMEOUT)
    assert one.counted("requests_total", model="m", backend=A, status="200") == 2
    assert one.counted("requests_total", model="m", backend=A, status="none") == 1
    assert one.counted("request_duration_seconds_count", model="m", backend=A) == 4
    assert one.counted("errors_total", model="m", error_type="backend_error") == 1
    assert one.counted("errors_total", model="m", error_type="timeout") == 1
    [traffic] = one.traffic.snapshot({("m", A): 3, ("m", B): 0})
    assert traffic == UpstreamTraffic(
        model="m", backend=A, requests=4, errors=2, seconds=2.0, squared_seconds=1.0, pending=3
    )


def test_tokens_per_second_approach_the_rate_of_the_last_minutes() -> None:
    now = 0.0
    traffic = BackendTraffic(Metrics(), lambda: now)
    traffic.record("m", A, [0.5], status=200, category=Category.NONE)
    for _ in range(100):
        traffic.record_usage("m", A, [Usage(input_tokens=15, output_tokens=10)])
        now += 2.5
        traffic.snapshot({})
    [found] = traffic.snapshot({})
    assert found.tokens_per_second == pytest.approx(10, rel=0.05)
    now += 600
    [found] = traffic.snapshot({}, [("m", A)])
    assert found.tokens_per_second < 0.1
    assert found.open_circuits == 1


def test_an_error_caused_by_the_line_is_not_an_error_of_the_backend() -> None:
    one = TrafficFixture()
    one.ended(400, Category.INVALID_REQUEST)
    one.ended(503, Category.SERVICE_UNAVAILABLE)
    assert one.counted("errors_total", model="m", error_type="other") == 1
    assert one.counted("errors_total", model="m", error_type="backend_error") == 1


def test_an_answer_of_the_wrong_shape_is_a_parse_error() -> None:
    one = TrafficFixture()
    one.ended(200, Category.RESPONSE_SHAPE)
    assert one.counted("errors_total", model="m", error_type="parse_error") == 1


@pytest.mark.parametrize(
    ("status", "text"),
    [(0, "none"), (100, "100"), (599, "599"), (99, "other"), (600, "other"), (999, "other")],
)
def test_statuses_that_http_does_not_have_share_a_label(status: int, text: str) -> None:
    one = TrafficFixture()
    one.ended(status, Category.UNKNOWN)
    assert one.counted("requests_total", model="m", backend=A, status=text) == 1


def test_requests_in_flight_are_reported_before_they_end() -> None:
    assert TrafficFixture().traffic.snapshot({("m", A): 1}) == [
        UpstreamTraffic(model="m", backend=A, pending=1)
    ]


def test_a_slice_without_an_available_backend_counts_as_an_error_of_its_model() -> None:
    one = TrafficFixture()
    for reason in ("no_backend", "capacity", "authentication", "permission", "retry"):
        one.traffic.record_deferral("m", reason)
    assert one.counted("errors_total", model="m", error_type="no_backend") == 1
    assert one.counted("errors_total", model="m", error_type="no_healthy_backend") == 3


def test_chats_count_by_how_they_are_sent() -> None:
    one = TrafficFixture()
    one.ended(500, Category.UPSTREAM_5XX, GROUPED_CHAT)
    one.ended(200)
    assert one.counted("chat_items_executed_total", mode="sync_microbatch", status="error") == 1
    assert one.counted("chat_items_executed_total", mode="concurrent", status="success") is None


def test_the_time_of_a_chat_is_measured_by_how_it_was_sent_and_by_its_outcome() -> None:
    one = TrafficFixture()
    one.ended(200, chat=CHAT)
    one.ended(200, chat=CHAT)
    one.ended(500, Category.UPSTREAM_5XX, CHAT)
    one.ended(200, chat=GROUPED_CHAT)
    counts = {
        (mode, status): one.counted("chat_provider_latency_seconds_count", mode=mode, status=status)
        for mode in (CHAT, GROUPED_CHAT)
        for status in ("success", "error")
    }
    assert counts == {
        (CHAT, "success"): 2,
        (CHAT, "error"): 1,
        (GROUPED_CHAT, "success"): 1,
        (GROUPED_CHAT, "error"): None,
    }
    assert one.counted("chat_provider_latency_seconds_sum", mode=CHAT, status="success") == 1.0


def test_tokens_are_counted_if_the_backend_reports_them() -> None:
    one = TrafficFixture()
    one.traffic.record_usage("m", A, [Usage(input_tokens=300)])
    assert one.counted("request_tokens_bucket", model="m", backend=A, type="prompt", le="500.0") == 1
    assert one.counted("request_tokens_count", model="m", backend=A, type="completion") is None


def test_the_saturation_is_the_part_of_the_slots_that_is_in_use() -> None:
    one = TrafficFixture()
    register_slot_gauges(one.metrics, lambda: 8)
    one.metrics.active_workers.inc(2)
    assert (one.counted("worker_saturation_ratio"), one.counted("total_workers")) == (0.25, 8)
    register_slot_gauges(one.metrics, lambda: 0)
    assert one.counted("worker_saturation_ratio") == 0


@pytest.mark.parametrize(
    ("buckets", "bounds"),
    [
        (REQUEST_SECONDS, (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)),
        (REQUEST_TOKENS, (10, 50, 100, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)),
        (GROUP_SIZES, (1, 2, 4, 8, 16, 32, 64)),
    ],
    ids=["S2-R1 durations", "S2-R1 tokens", "S1-259 lines in a request"],
)
def test_buckets_are_those_of_the_documented_sources(
    buckets: tuple[float, ...], bounds: tuple[float, ...]
) -> None:
    assert buckets == bounds
