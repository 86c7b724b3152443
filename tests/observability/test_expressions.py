"""Each expression in the dashboards and rules returns data of a real stack from a real Prometheus."""

import asyncio
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.constants import with_constants
from tests.e2e.stack import dev
from tests.observability.history import make_history
from tests.observability.prometheus import ROOT, RULES, Prometheus, rules, scraping, tool

pytestmark = pytest.mark.prometheus
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
ALERTS = [(rule["alert"], rule["expr"]) for rule in rules() if "alert" in rule]
# What this stack does not go through: a storage that throttles or fails, an API that cannot answer.
QUIET = "batchwright_finalization_retries_total"
RARE = re.compile(r'status=~?"(?:retry|exhausted|5\.\.)",?')


def panels() -> list[tuple[str, str, str]]:
    """Return dashboard, panel and expression of each panel. Grafana's variables are replaced by values."""
    return [
        (path.stem, panel["title"], _filled(target["expr"]))
        for path in DASHBOARDS
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", [])
    ]


def _filled(expr: str) -> str:
    return re.sub(r"\$(model|tenant|instance)\b", ".*", expr.replace("$__rate_interval", "2m"))


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Prometheus]:
    """A Prometheus that has observed a stack on which all documented events happened.

    Two batches on the stack are still in progress.
    """
    with (
        tempfile.TemporaryDirectory(prefix="batchwright-prometheus-") as folder,
        dev(
            *("--workers", "2"),
            data=None,
            BATCHWRIGHT_CIRCUIT_FAILURES="2",
            **with_constants(observe_seconds=1),
        ) as stack,
        scraping(stack.now.metrics, Path(folder)) as prometheus,
    ):
        asyncio.run(make_history(stack, prometheus))
        yield prometheus


@pytest.mark.parametrize(("board", "panel", "expr"), panels())
def test_a_panel_shows_something(prometheus: Prometheus, board: str, panel: str, expr: str) -> None:
    if QUIET in expr:
        assert QUIET in prometheus.families()
    else:
        assert prometheus.ask(RARE.sub("", expr)), f"{board}, {panel}"


@pytest.mark.parametrize("name", [rule["record"] for rule in rules() if "record" in rule])
def test_a_recording_rule_records(prometheus: Prometheus, name: str) -> None:
    assert prometheus.ask(name)


@pytest.mark.parametrize(
    ("name", "expr"), [(rule["alert"], rule["expr"]) for rule in rules() if "alert" in rule]
)
def test_an_alert_uses_existing_metrics(prometheus: Prometheus, name: str, expr: str) -> None:
    """Each selector in the alert finds data, so that the alert can fire."""
    prometheus.ask(expr)
    for selector in re.findall(r"\b(?:(?:batchwright|temporal)_\w+|up(?=\{))(?:\{[^}]*\})?", expr):
        assert prometheus.ask(RARE.sub("", selector)), f"{name}: {selector}"


def test_a_workflow_that_cannot_be_replayed_raises_an_alert(prometheus: Prometheus) -> None:
    assert prometheus.ask('ALERTS{alertname="BatchwrightWorkflowTasksFailing"}')


def test_rule_files_are_valid_and_every_alert_fires_when_it_should() -> None:
    tests = sorted((ROOT / "tests" / "observability").glob("*.test.yaml"))
    config = ROOT / "deploy" / "prometheus" / "prometheus.yml"
    subprocess.run([tool("promtool"), "check", "config", "--syntax-only", config], check=True)
    subprocess.run([tool("promtool"), "check", "rules", *RULES], check=True)
    subprocess.run([tool("promtool"), "test", "rules", *tests], check=True)
