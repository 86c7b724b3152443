"""Dashboards, alerts and runbooks refer to each other and to existing metrics."""

import re
from collections import defaultdict
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from batchwright.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[3]
BOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
RULES = ROOT / "deploy" / "prometheus"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
UNITS = {"short", "s", "reqps", "ops", "bytes", "Bps", "percentunit"}
# Of the Temporal SDK, and of the library that counts processes; `make test-observability` sees the real ones.
THEIRS = {
    "temporal_activity_schedule_to_start_latency_seconds_bucket",
    "temporal_num_pollers",
    "temporal_request_failure_total",
    "temporal_sticky_cache_size",
    "temporal_workflow_task_execution_failed_total",
    "temporal_workflow_task_execution_latency_seconds_bucket",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_resident_memory_bytes",
}


class Place(BaseModel):
    x: int
    y: int
    w: int
    h: int

    def overlaps(self, other: "Place") -> bool:
        apart_x = self.x + self.w <= other.x or other.x + other.w <= self.x
        return not (apart_x or self.y + self.h <= other.y or other.y + other.h <= self.y)


class Target(BaseModel):
    refId: str
    expr: str
    datasource: dict[str, str]


class Defaults(BaseModel):
    unit: str


class FieldConfig(BaseModel):
    defaults: Defaults


class Panel(BaseModel):
    id: int
    type: str
    title: str
    gridPos: Place
    description: str = ""
    targets: list[Target] = []
    fieldConfig: FieldConfig | None = None


class Variable(BaseModel):
    name: str
    type: str
    query: str | dict[str, str]


class Variables(BaseModel):
    list: list[Variable]


class Board(BaseModel):
    uid: str
    title: str
    schemaVersion: int
    templating: Variables
    panels: list[Panel]


class Rule(BaseModel):
    expr: str
    record: str = ""
    alert: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Expected(BaseModel):
    alertname: str
    exp_alerts: list[dict[str, object]]


class Case(BaseModel):
    alert_rule_test: list[Expected] = []


def board(path: Path) -> Board:
    return Board.model_validate_json(path.read_text())


def charts(path: Path) -> list[Panel]:
    return [panel for panel in board(path).panels if panel.type != "row"]


def rules() -> list[Rule]:
    groups = [group for path in RULES.glob("*.yaml") for group in yaml.safe_load(path.read_text())["groups"]]
    return [Rule.model_validate(rule) for group in groups for rule in group["rules"]]


def alerts() -> list[Rule]:
    return [rule for rule in rules() if rule.alert]


def series() -> set[str]:
    """Return the names of all our metrics in the form used in queries, with suffixes such as `_total`."""
    registry = CollectorRegistry()
    Metrics(registry)
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    return {
        family.name + suffix for family in registry.collect() for suffix in suffixes.get(family.type, [""])
    }


def names_in(expr: str) -> set[str]:
    return set(re.findall(r"\b(?:batchwright|temporal|process)_\w+", expr))


by_board = pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)


def test_there_is_a_dashboard_for_every_subject() -> None:
    assert [path.stem for path in BOARDS] == ["model", "overview", "storage", "tenant", "worker"]
    assert {board(path).uid for path in BOARDS} == {f"batchwright-{path.stem}" for path in BOARDS}


@by_board
def test_a_dashboard_uses_existing_metrics(path: Path) -> None:
    used = {name for panel in charts(path) for target in panel.targets for name in names_in(target.expr)}
    used |= {name for variable in board(path).templating.list for name in names_in(str(variable.query))}
    assert used - series() - THEIRS == set()


@pytest.mark.parametrize(
    "name",
    [
        "requests_total",
        "errors_total",
        "fallbacks_total",
        "backend_up",
        "backends_healthy",
        "backend_circuit_open",
        "model_circuit_open",
    ],
)
def test_the_health_of_backends_is_on_a_dashboard(name: str) -> None:
    shown = {
        metric
        for path in BOARDS
        for panel in charts(path)
        for target in panel.targets
        for metric in names_in(target.expr)
    }
    assert f"batchwright_{name}" in shown


@by_board
def test_every_panel_says_what_it_shows_and_in_which_unit(path: Path) -> None:
    for panel in charts(path):
        assert panel.description.endswith("."), panel.title
        assert panel.targets, panel.title
        assert panel.fieldConfig is not None
        assert panel.fieldConfig.defaults.unit in UNITS, panel.title


@by_board
def test_panels_have_their_own_ids_and_places(path: Path) -> None:
    panels = board(path).panels
    assert len({panel.id for panel in panels}) == len(panels)
    for one, other in combinations(panels, 2):
        assert not one.gridPos.overlaps(other.gridPos), f"{one.title}, {other.title}"
    assert all(panel.gridPos.x + panel.gridPos.w <= 24 for panel in panels)


@by_board
def test_every_query_goes_to_the_chosen_data_source(path: Path) -> None:
    assert board(path).templating.list[0].type == "datasource"
    for panel in charts(path):
        for target in panel.targets:
            assert target.datasource["uid"] == "${datasource}"


@by_board
def test_every_variable_is_used_and_every_used_one_is_defined(path: Path) -> None:
    own = {variable.name for variable in board(path).templating.list} - {"datasource"}
    exprs = " ".join(target.expr for panel in charts(path) for target in panel.targets)
    used = set(re.findall(r"\$(\w+)", exprs)) - {"__rate_interval"}
    assert used == own


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.alert or rule.record)
def test_a_rule_uses_existing_metrics(rule: Rule) -> None:
    assert names_in(rule.expr) - series() - THEIRS == set()


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.alert)
def test_an_alert_says_how_bad_it_is_and_what_to_do(alert: Rule) -> None:
    assert alert.labels["severity"] in ("warning", "critical")
    assert alert.annotations["summary"]
    assert alert.annotations["description"].endswith(".")
    assert alert.annotations["runbook"] == f"docs/runbooks.md#{alert.alert.lower()}"


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    sections = re.findall(r"^## (\w+)$", RUNBOOKS.read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(alert.alert for alert in alerts())


def test_every_runbook_says_what_it_means_how_to_see_and_what_to_do() -> None:
    for section in RUNBOOKS.read_text().split("\n## ")[1:]:
        places = [section.find(f"**{word}**") for word in ("Means", "See", "Do")]
        assert all(0 < one < other for one, other in pairwise(places)), section.partition("\n")[0]


def test_every_alert_is_tested_to_fire_and_not_to_fire() -> None:
    text = (ROOT / "tests" / "observability" / "alerts.test.yaml").read_text()
    outcomes = defaultdict[str, set[bool]](set)
    for case in yaml.safe_load(text)["tests"]:
        for expected in Case.model_validate(case).alert_rule_test:
            outcomes[expected.alertname].add(bool(expected.exp_alerts))
    fires_only = {name for name, seen in outcomes.items() if seen == {True}}
    assert outcomes.keys() == {alert.alert for alert in alerts()}
    # Their tests have a second series that looks alike and must not fire, at the same moment.
    assert fires_only <= {"BatchwrightWorkersSaturated", "BatchwrightTargetDown"}
