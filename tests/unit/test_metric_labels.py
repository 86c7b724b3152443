"""Values of labels stay few, whoever chooses them."""

from prometheus_client import CollectorRegistry

from batchwright.telemetry.labels import OTHER, Bounded, leading
from batchwright.telemetry.metrics import Metrics

SUFFIXES = ("_seconds", "_bytes", "_total", "_info", "_ratio", "_per_second")
# Names of the sources (R15), and counts of things, which have no unit.
COUNTS = {
    "batchwright_audit_differences",
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
    "batchwright_items",
    "batchwright_jobs",
    "batchwright_microbatch_size",
    "batchwright_model_circuit_open",
    "batchwright_model_inflight_requests",
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
    "batchwright_organization_token_budget",
    "batchwright_organization_tokens_used",
    "batchwright_tenant_token_budget",
    "batchwright_tenant_tokens_used",
    "batchwright_token_budgets_exhausted",
    "batchwright_token_budgets_short",
    "batchwright_total_workers",
}


def test_the_first_values_keep_their_name_and_all_others_share_one() -> None:
    bounded = Bounded(2)
    assert [bounded(value) for value in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


def test_none_may_have_a_name_of_its_own() -> None:
    assert Bounded(0)("a") == OTHER


def test_the_heaviest_lead_and_equal_ones_by_name() -> None:
    assert leading({"a": 1, "b": 3, "c": 3, "d": 2}, 2) == {"b", "c"}
    assert leading({"b": 1, "a": 1}, 1) == {"a"}


def test_every_name_has_its_unit() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    ours = [family for family in registry.collect() if family.name.startswith("batchwright_")]
    bare = {family.name for family in ours if family.type != "counter" and not family.name.endswith(SUFFIXES)}
    assert bare == COUNTS


def test_no_label_is_an_id() -> None:
    names = {label for family in vars(Metrics()).values() for label in getattr(family, "label_names", ())}
    assert {name for name in names if name.endswith("id")} == set()
