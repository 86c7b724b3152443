"""Reference pages and dashboards that follow from the code: `make docs` writes them, a test compares."""

from pathlib import Path

from pydantic_core import PydanticUndefined

from batchwright.settings import Settings
from batchwright.settings.otel import variable
from batchwright.telemetry.collectors import Counter, Gauge, Histogram
from batchwright.telemetry.metrics import Metrics
from bench import page
from docs import chart, errors, records, registry
from docs.dashboards.machinery import STORAGE, WORKER
from docs.dashboards.overview import OVERVIEW
from docs.dashboards.shares import MODEL, TENANT

REFERENCE = Path(__file__).parent / "reference"
DASHBOARDS = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards"
BOARDS = (OVERVIEW, MODEL, TENANT, WORKER, STORAGE)
GENERATED = "<!-- made by `make docs` -->\n"


def pages() -> dict[Path, str]:
    """Every generated page and its text."""
    return {
        REFERENCE / "settings.md": _settings(),
        REFERENCE / "metrics.md": _metrics(),
        REFERENCE / "error-codes.md": errors.page(GENERATED),
        REFERENCE / "registry.md": registry.page(GENERATED),
        **{DASHBOARDS / f"{board.uid.removeprefix('batchwright-')}.json": board.render() for board in BOARDS},
        **chart.pages(),
        **records.pages(GENERATED),
        **page.pages(),
    }


def _settings() -> str:
    rows = [
        f"| `{variable(name)}` | {_default(field.default)} | {_cell(field.description or '')} |"
        for name, field in sorted(Settings.model_fields.items(), key=lambda item: variable(item[0])[0])
    ]
    intro = "Read from the environment at start; a wrong one ends the process with exit 2."
    return _page("Settings", intro, rows, "| variable | default | meaning |\n|---|---|---|")


def _default(value: object) -> str:
    if value is PydanticUndefined or value in ("", None, [], {}):
        return "unset"
    return f"`{value}`"


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
            assert name in ("registry", "tenants", "before_shown") or name.startswith("_"), (
                f"{name} is no metric"
            )
    return _page("Metrics", METRICS, sorted(rows), "| name | type | labels | meaning |\n|---|---|---|---|")


def _labels(metric: Counter | Gauge | Histogram) -> str:
    return ", ".join(f"`{name}`" for name in metric.label_names)


METRICS = """\
Served at `/metrics` of the API and of every worker, beside the Temporal SDK's own (`temporal_...`) and
those of the process (`process_...`, `python_...`). [What to look at](../how-to/monitor.md);
[what differs](metrics-mapping.md) from the metrics of the gateways that this one learnt from.

Labels are bounded. `model`: what the backends list. `backend`: its URL. `tenant`: the first
`BATCHWRIGHT_METRICS_TENANTS` of a
process, for live batches those with most lines left; the rest is `other`. `route`: parameters in braces.
Numbers of the whole fleet are the same at every control worker: take their `max`."""


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
