"""The chart's documentation is complete. The chart contains copies of files that are kept elsewhere."""

import json
import re
from pathlib import Path

import helm_python
import pytest
import yaml

from batchwright.rules.ids import safe_name
from batchwright.settings import SECRETS
from docs.helm_chart import CHART, setting_names
from tests.unit.deploy.chart import Values, at, check, names, one, render, with_least
from tests.unit.deploy.files import ROOT

pytestmark = pytest.mark.integration

RULES = [
    path for path in sorted((ROOT / "deploy" / "prometheus").glob("*.yaml")) if "groups" in path.read_text()
]
HOW_TO = "".join(
    (ROOT / "docs" / "how-to" / f"{page}-on-kubernetes.md").read_text() for page in ("run", "scale")
)
EXAMPLES = re.findall(r"```yaml\n(.*?)```", HOW_TO + (CHART / "README.md").read_text(), flags=re.DOTALL)
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))


def test_no_secret_is_a_setting_of_the_chart() -> None:
    assert set(setting_names()).isdisjoint(SECRETS)


def test_every_value_is_explained() -> None:
    table = (CHART / "README.md").read_text()
    for path in _leaves("", yaml.safe_load((CHART / "values.yaml").read_text())):
        assert any(f"| `{prefix}` |" in table for prefix in _prefixes(path)), path


def test_every_value_has_a_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    for path in _leaves("", yaml.safe_load((CHART / "values.yaml").read_text())):
        assert at(schema, f"properties.{path.split('.')[0]}"), path


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["appVersion"]}"\n' in project


def test_the_chart_has_the_alerts_unchanged() -> None:
    resources = render(with_least(monitoring={"rules": True}))
    rendered = {name: one(resources, "PrometheusRule", name) for name in names(resources, "PrometheusRule")}
    assert {name: rule.at("spec.groups") for name, rule in rendered.items()} == {
        f"batchwright-{path.stem.replace('_', '-').lower()}": yaml.safe_load(path.read_text())["groups"]
        for path in RULES
    }


def test_the_chart_has_the_dashboards_unchanged() -> None:
    resources = render(with_least(monitoring={"dashboards": True}))
    rendered = one(resources, "ConfigMap", "batchwright-dashboards").at("data") or {}
    assert isinstance(rendered, dict)
    assert {name: json.loads(str(text)) for name, text in rendered.items()} == {
        path.name: json.loads(path.read_text()) for path in DASHBOARDS
    }


@pytest.mark.parametrize("place", range(len(EXAMPLES)))
def test_the_values_in_the_documentation_are_valid(place: int) -> None:
    values: Values = yaml.safe_load(EXAMPLES[place])
    for resource in render(with_least(**values)):
        check(resource)


def test_the_queue_in_the_documentation_is_the_models() -> None:
    assert f"[inference.{safe_name('llama-3.1-8b')}, dispatch]" in HOW_TO


def test_a_packaged_chart_carries_the_same(tmp_path: Path) -> None:
    values = with_least(monitoring={"rules": True, "dashboards": True})
    chart = helm_python.Chart.load(CHART)
    archive = Path(chart.save(tmp_path)).read_bytes()
    packaged = helm_python.Chart.load_archive(archive)
    assert packaged.render(values, name="a") == chart.render(values, name="a")


def test_dashboards_fit_into_a_configmap() -> None:
    assert sum(path.stat().st_size for path in DASHBOARDS) < 900_000


def test_monitoring_is_off_by_default() -> None:
    kinds = {resource.kind for resource in render()}
    assert kinds.isdisjoint({"ServiceMonitor", "PodMonitor", "PrometheusRule"})
    assert names(render(), "ConfigMap") == {"batchwright"}


def _leaves(path: str, value: object) -> list[str]:
    if isinstance(value, dict) and value:
        found: list[str] = []
        for key in value:  # pyright: ignore[reportUnknownVariableType] - YAML's own
            found += _leaves(f"{path}.{key}" if path else str(key), value[key])  # pyright: ignore[reportUnknownArgumentType]
        return found
    return [path]


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
