"""Generates reference pages and dashboards from the code. `make docs` writes them; a test compares them."""

from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from batchwright.settings import Settings
from batchwright.settings.observability_settings import variable_name
from batchwright.settings.setting_levels import MARKS
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.prometheus.metric_types import Counter, Gauge, Histogram
from bench import page
from docs import decision_index, error_codes, helm_chart, registry_reference, scaling_page
from docs.dashboards.models_and_tenants import MODEL, TENANT
from docs.dashboards.overview import OVERVIEW
from docs.dashboards.workers_and_storage import STORAGE, WORKER
from tests.chaos import page as disturbances

REFERENCE = Path(__file__).parent / "reference"
DASHBOARDS = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards"
BOARDS = (OVERVIEW, MODEL, TENANT, WORKER, STORAGE)
GENERATED = "<!-- made by `make docs` -->\n"


def pages() -> dict[Path, str]:
    """Return the text of every generated page, by path."""
    return {
        REFERENCE / "settings.md": _settings(),
        REFERENCE / "metrics.md": _metrics(),
        REFERENCE / "error-codes.md": error_codes.page(GENERATED),
        REFERENCE / "registry.md": registry_reference.page(GENERATED),
        **{DASHBOARDS / f"{board.uid.removeprefix('batchwright-')}.json": board.render() for board in BOARDS},
        **helm_chart.pages(),
        **decision_index.pages(GENERATED),
        **page.pages(),
        **disturbances.pages(),
        **scaling_page.pages(GENERATED),
    }


def _settings() -> str:
    rows: dict[str, list[str]] = {level: [] for level in LEVELS}
    for name, field in sorted(Settings.model_fields.items(), key=lambda item: variable_name(item[0])[0]):
        rows[_level(field)].append(
            f"| `{variable_name(name)}` | {_default(field.default)} | {_cell(field.description or '')} |"
        )
    parts = [f"## {title}\n\n{_table(rows[level])}" for level, title in LEVELS.items()]
    return f"# Settings\n\n{GENERATED}\n{SETTINGS}\n\n" + "\n".join(parts)


def _level(field: FieldInfo) -> str:
    return next((level for level, mark in MARKS.items() if field.json_schema_extra == mark), "")


def _table(rows: list[str]) -> str:
    return "| variable | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _default(value: object) -> str:
    if value is PydanticUndefined or value in ("", None, [], {}):
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"`{value:g}`" if isinstance(value, float) else f"`{value}`" + _mebibytes(value)
    return f"`{value}`"


def _mebibytes(value: int) -> str:
    return f" ({value // _MIB} MiB)" if value and value % _MIB == 0 else ""


def _metrics() -> str:
    rows: list[str] = []
    for name, metric in sorted(vars(Metrics()).items(), key=lambda item: item[0]):
        if isinstance(metric, Counter | Gauge | Histogram):
            for family in metric.describe():
                suffix = "_total" if family.type == "counter" else ""
                labels = _labels(metric)
                rows.append(
                    f"| `{family.name}{suffix}` | {family.type} | {labels} | {_cell(family.documentation)} |"
                )
        else:
            assert name in ("registry", "tenants", "models", "before_scrape") or name.startswith("_"), (
                f"{name} is no metric"
            )
    return _page("Metrics", METRICS, sorted(rows), "| name | type | labels | meaning |\n|---|---|---|---|")


def _labels(metric: Counter | Gauge | Histogram) -> str:
    return ", ".join(f"`{name}`" for name in metric.label_names)


# Sections of the settings page, by the level of importance of their settings.
LEVELS = {"start": "Start here", "tuning": "Tuning", "": "Rarely needed"}
_MIB = 1024 * 1024

SETTINGS = """\
Every process reads its settings from environment variables when it starts. If a value is wrong, the process
names it and ends with exit code 2. `batchwright config show` prints all settings with their sources.

A list is given as JSON, such as `["http://10.0.0.1:8000"]`, and so is a map, such as `{"blue": 2}`."""

METRICS = """\
The API and every worker serve these metrics at `/metrics`, together with those of the Temporal SDK
(`temporal_...`) and of the process (`process_...`, `python_...`). See
[what to monitor](../how-to/monitor.md) and [what the metrics count](what-metrics-count.md).

Labels are bounded:

- `model`: models that backends list, and at most 100 other names at a time. All others are `other`.
- `backend`: the backend's URL.
- `tenant`: `BATCHWRIGHT_METRICS_TENANTS` tenants have their own name; all others are `other`. For live
  batches these are the tenants with most lines left, for counters the first ones that the process meets.
- `route`: the path with its parameters in braces.

Metrics of the whole fleet have the same value at every control worker: use `max`, not `sum`."""


def _page(title: str, intro: str, rows: list[str], head: str) -> str:
    return f"# {title}\n\n{GENERATED}\n{intro}\n\n{head}\n" + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
