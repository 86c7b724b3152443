"""The number of label values is limited, even if tenants choose the values."""

from prometheus_client import CollectorRegistry

from batchwright.telemetry.labels import MODEL_LABELS, OTHER, BoundedLabel, top_names
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.prometheus.metric_types import Counter, Gauge, Histogram

SUFFIXES = ("_seconds", "_bytes", "_total", "_info", "_ratio", "_per_second")
# Names that the requirements give, and counts of things, which have no unit.
COUNTS = {
    "batchwright_api_event_streams",
    "batchwright_consistency_differences",
    "batchwright_active_workers",
    "batchwright_backend_circuit_open",
    "batchwright_backend_inflight_requests",
    "batchwright_backend_max_inflight_concurrency",
    "batchwright_backend_outstanding_requests",
    "batchwright_backend_jobs_running",
    "batchwright_backend_up",
    "batchwright_backends",
    "batchwright_backends_healthy",
    "batchwright_batches_at_risk",
    "batchwright_batches_past_deadline",
    "batchwright_batches_waiting",
    "batchwright_batches_without_run",
    "batchwright_chat_microbatch_size",
    "batchwright_forecast_batches",
    "batchwright_interactive_inflight_requests",
    "batchwright_items",
    "batchwright_jobs",
    "batchwright_microbatch_size",
    "batchwright_model_circuit_open",
    "batchwright_model_inflight_requests",
    "batchwright_model_lines_due",
    "batchwright_model_lines_left",
    "batchwright_model_max_inflight_concurrency",
    "batchwright_models_available",
    "batchwright_processor_inflight_requests",
    "batchwright_processor_max_inflight_concurrency",
    "batchwright_queue_depth",
    "batchwright_queue_pollers",
    "batchwright_registry_problems",
    "batchwright_request_tokens",
    "batchwright_tenant_jobs",
    "batchwright_tenant_lines_left",
    "batchwright_organization_budget",
    "batchwright_organization_budget_used",
    "batchwright_tenant_budget",
    "batchwright_tenant_budget_used",
    "batchwright_budgets_exhausted",
    "batchwright_budgets_short",
    "batchwright_total_workers",
}


def test_the_first_values_keep_their_name_and_all_others_share_one() -> None:
    bounded = BoundedLabel(2)
    assert [bounded(value) for value in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


def test_a_limit_of_zero_puts_all_values_under_one_label() -> None:
    assert BoundedLabel(0)("a") == OTHER


def test_the_largest_values_come_first_and_equal_ones_by_name() -> None:
    assert top_names({"a": 1, "b": 3, "c": 3, "d": 2}, 2) == {"b", "c"}
    assert top_names({"b": 1, "a": 1}, 1) == {"a"}


def test_every_name_has_its_unit() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    ours = [family for family in registry.collect() if family.name.startswith("batchwright_")]
    bare = {family.name for family in ours if family.type != "counter" and not family.name.endswith(SUFFIXES)}
    assert bare == COUNTS


def test_no_label_is_an_id() -> None:
    names = {label for family in vars(Metrics()).values() for label in getattr(family, "label_names", ())}
    assert {name for name in names if name.endswith("id")} == set()


def test_no_family_has_a_series_for_each_of_many_unlisted_models() -> None:
    metrics = Metrics()
    metrics.models.set_listed(["listed", "other-listed"])
    families = [
        family
        for family in vars(metrics).values()
        if isinstance(family, Counter | Gauge | Histogram) and {*MODEL_LABELS} & {*family.label_names}
    ]
    assert len(families) > 30
    names = [*(f"m{number}" for number in range(1000)), "listed", "other-listed", ""]
    for family in families:
        for name in names:
            family.labels(*[name if label in MODEL_LABELS else "x" for label in family.label_names])
        [metric] = family.collect()
        label = next(label for label in family.label_names if label in MODEL_LABELS)
        shown = {sample.labels[label] for sample in metric.samples}
        assert shown == {*names[:100], OTHER, "listed", "other-listed", ""}, family.name


def test_lines_of_models_without_a_label_of_their_own_are_counted_together() -> None:
    metrics = Metrics()
    for number in range(150):
        metrics.request_errors.labels(f"m{number}").inc(2)
    assert metrics.request_errors.labels("m99").value == 2
    assert metrics.request_errors.labels(OTHER).value == 100
    metrics.remove_series("model", "m0")
    metrics.request_errors.labels("m149").inc()
    assert metrics.request_errors.labels("m149").value == 1
