"""Types for dashboards, and their conversion to the JSON that Grafana loads."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

_COLUMNS = 24
_SCHEMA = 39  # version of the JSON format, for Grafana 10.4 and later
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
RATE = "$__rate_interval"

Json = dict[str, object]


@dataclass(frozen=True)
class PanelQuery:
    """A Prometheus query of a panel. `legend` has names of labels in double braces, as in {{model}}."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel of a dashboard.

    `unit` is a unit of Grafana. A value of `alarm` or more is shown in red; None shows no value in red.
    `least` and `most` are the ends of the vertical axis; if one is None, Grafana chooses it.
    """

    title: str
    description: str
    queries: Sequence[PanelQuery]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    alarm: float | None = None
    least: float | None = 0
    most: float | None = None


@dataclass(frozen=True)
class PanelRow:
    """A row of panels below a common title."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class BoardVariable:
    """A label of metrics whose value the reader of a dashboard can select.

    `name` is the name of the label. `of` is a metric that has this label; the values to select from are read
    from this metric.
    """

    name: str
    of: str


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    description: str
    rows: Sequence[PanelRow]
    variables: Sequence[BoardVariable] = field(default=())

    def render(self) -> str:
        return json.dumps(_render_dashboard(self), indent=1) + "\n"


def stat(title: str, description: str, expr: str, unit: str = "short", alarm: float | None = None) -> Panel:
    """Return a panel that shows one number, the present value of the query `expr`."""
    return Panel(title, description, [PanelQuery(expr)], unit, "stat", width=4, height=4, alarm=alarm)


def rates(metric: str, by: str, where: str = "", *, every_minute: bool = False) -> list[PanelQuery]:
    """Return a query for the rate of a counter, per second or per minute, as a list of one item.

    Args:
        metric: name of the counter.
        by: labels, separated by commas. The panel shows one line for each combination of their values.
        where: label selector in braces; empty to select all series.
        every_minute: True for the rate per minute, False for the rate per second.
    """
    times = "60 * " if every_minute else ""
    return [PanelQuery(f"{times}sum by ({by}) (rate({metric}{where}[{RATE}]))", _legend(by))]


def gauges(how: str, metric: str, by: str, where: str = "") -> list[PanelQuery]:
    """Return a query for a gauge, as a list of one item.

    Args:
        how: function that combines the values of several processes, such as `sum`.
        metric: name of the gauge.
        by: labels, separated by commas. The panel shows one line for each combination of their values.
        where: label selector in braces; empty to select all series.
    """
    return [PanelQuery(f"{how} by ({by}) ({metric}{where})", _legend(by))]


def quantiles(
    metric: str, by: str = "", where: str = "", ranks: Sequence[float] = (0.5, 0.95)
) -> list[PanelQuery]:
    """Return one query for each quantile in `ranks` of a histogram, computed over the last minutes.

    Args:
        metric: name of the histogram.
        by: a label. For each quantile, the panel shows one line for each value of the label. If `by` is
            empty, it shows only one line for each quantile.
        where: label selector in braces; empty to select all series.
        ranks: the quantiles, from 0 to 1.
    """
    labels = f"le, {by}" if by else "le"
    name = f" {{{{{by}}}}}" if by else ""
    return [
        PanelQuery(
            f"histogram_quantile({rank}, sum by ({labels}) (rate({metric}_bucket{where}[{RATE}])))",
            f"p{rank * 100:.0f}{name}",
        )
        for rank in ranks
    ]


def _legend(by: str) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in by.split(", "))


def _render_dashboard(board: Dashboard) -> Json:
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": ["batchwright"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [_neighbours()],
        "templating": {"list": [_datasource(), *map(_variable, board.variables)]},
        "panels": _placed(board.rows),
    }


def _neighbours() -> Json:
    """Return the menu with links to the other dashboards."""
    return {
        "type": "dashboards",
        "title": "Batchwright",
        "tags": ["batchwright"],
        "icon": "external link",
        "tooltip": "",
        "asDropdown": True,
        "targetBlank": False,
        "includeVars": False,
        "keepTime": True,
    }


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
    }


def _variable(variable: BoardVariable) -> Json:
    return {
        "name": variable.name,
        "label": variable.name.capitalize(),
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": f"label_values({variable.of}, {variable.name})", "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed(rows: Sequence[PanelRow]) -> list[Json]:
    """Return the panels with their positions and ids.

    The panels of a row are placed from left to right. If a panel does not fit into the width of the
    dashboard, it is placed below the others.
    """
    placed: list[Json] = []
    y = 0
    for row in rows:
        placed.append(_row(row.title, len(placed) + 1, y))
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > _COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            placed.append(_panel(panel, len(placed) + 1, x, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return placed


def _row(title: str, id: int, y: int) -> Json:
    place = {"h": 1, "w": _COLUMNS, "x": 0, "y": y}
    return {"id": id, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, id: int, x: int, y: int) -> Json:
    return {
        "id": id,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y},
        "targets": [_target(query, chr(ord("A") + place)) for place, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
    }


def _target(query: PanelQuery, id: str) -> Json:
    return {
        "refId": id,
        "datasource": _DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "range": True,
    }


def _defaults(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    if panel.alarm is not None:
        steps.append({"color": "red", "value": panel.alarm})
    defaults: Json = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    bounds = {"min": panel.least, "max": panel.most}
    defaults |= {name: bound for name, bound in bounds.items() if bound is not None}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        lines = {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 5, "showPoints": "never"}
        defaults["custom"] = {**lines, "stacking": stacking}
    return defaults


def _options(panel: Panel) -> Json:
    if panel.kind == "stat":
        reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": reduce, "colorMode": "value", "graphMode": "area", "textMode": "auto"}
    legend = {
        "displayMode": "table",
        "placement": "bottom",
        "showLegend": True,
        "calcs": ["lastNotNull", "max"],
    }
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
