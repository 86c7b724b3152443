"""The Prometheus query of the chart's autoscaler. It returns how many requests in flight a pool needs."""

import subprocess
from pathlib import Path

import pytest
import yaml
from pydantic import JsonValue

from tests.observability.prometheus import tool
from tests.unit.deploy.chart import at, one, render, with_least

pytestmark = pytest.mark.prometheus


def query(*models: str) -> str:
    """Return the query for a pool that serves these models; for all models if there are none."""
    pool: JsonValue = {
        "name": "all",
        "roles": ["control", "io", "inference"],
        "models": list(models),
        "autoscaling": {"type": "backlog", "queues": ["dispatch"]},
    }
    values = with_least(workers=[pool], keda={"prometheus": {"address": "http://prometheus:9090"}})
    triggers = one(render(values), "ScaledObject", "batchwright-worker-all").at("spec.triggers")
    return str(at(triggers, "1.metadata.query"))


def series(name: str, labels: str, values: str) -> JsonValue:
    return {"series": f'batchwright_{name}{{namespace="production",{labels}}}', "values": values}


def required(model: str, rate: float) -> list[JsonValue]:
    """Return the metric with the rate that a model requires, with the same value from each of two control
    workers.
    """
    name = "model_required_results_per_second"
    return [series(name, f'model="{model}",pod="{pod}"', f"{rate}x60") for pod in ("a", "b")]


def requests(model: str, seconds_per_minute: float, results_per_minute: float) -> list[JsonValue]:
    """Return counters of two workers. Their sums grow by these seconds in flight and these results each
    minute.
    """
    counters = {
        "model_request_execution_duration_seconds_sum": ("", seconds_per_minute / 2),
        "request_results_total": (',result="success"', results_per_minute / 2),
    }
    return [
        series(name, f'model="{model}",pod="{pod}"{label}', f"0+{step}x60")
        for pod in ("c", "d")
        for name, (label, step) in counters.items()
    ]


def check(folder: Path, given: list[JsonValue], expr: str, expected: list[float]) -> None:
    """Fail unless Prometheus evaluates the expression to the expected values, without labels."""
    samples: list[JsonValue] = [{"labels": "{}", "value": value} for value in expected]
    test: JsonValue = {
        "interval": "1m",
        "input_series": given,
        "promql_expr_test": [{"expr": expr, "eval_time": "50m", "exp_samples": samples}],
    }
    path = folder / "demand.test.yaml"
    path.write_text(yaml.safe_dump({"tests": [test]}))
    command = [tool("promtool"), "test", "rules", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_the_required_rate_times_the_seconds_in_flight_per_result(tmp_path: Path) -> None:
    given = [*required("a", 2.5), *requests("a", seconds_per_minute=360, results_per_minute=30)]
    check(tmp_path, given, query("a"), [2.5 * 12])


def test_the_models_of_a_pool_add_up_and_other_models_do_not_count(tmp_path: Path) -> None:
    given = [
        *(each for model in ("a.1", "b", "a-1") for each in required(model, 1.0)),
        *requests("a.1", 600, 60),
        *requests("b", 1200, 60),
        *requests("a-1", 6000, 60),
    ]
    check(tmp_path, given, query("a.1", "b"), [30.0])
    check(tmp_path, given, query(), [130.0])


def test_a_model_without_results_adds_nothing(tmp_path: Path) -> None:
    """It is not known how long its requests take. If its backend is down, more workers do not help."""
    new, stalled = required("new", 9.0), [*required("stalled", 9.0), *requests("stalled", 600, 0)]
    given = [*new, *stalled, *required("a", 1.0), *requests("a", 600, 60)]
    check(tmp_path, given, query(), [10.0])
    check(tmp_path, given, query("new"), [])
