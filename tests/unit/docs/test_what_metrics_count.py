"""The page that explains what metrics count names only existing metrics. The descriptions of metrics are
readable.
"""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from batchwright.telemetry.metrics import Metrics

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "what-metrics-count.md"


def meanings() -> dict[str, str]:
    registry = CollectorRegistry()
    Metrics(registry)
    return {
        metric.name + ("_total" if metric.type == "counter" else ""): metric.documentation
        for metric in registry.collect()
    }


def test_every_metric_on_the_page_exists() -> None:
    assert set(re.findall(r"`(batchwright_\w+)`", PAGE.read_text())) - meanings().keys() == set()


def test_no_definition_contains_the_number_of_a_requirement() -> None:
    assert [name for name, meaning in meanings().items() if re.search(r"S\d-R?\d+", meaning)] == []


def test_a_definition_can_be_read_without_those_before_it() -> None:
    """Grafana shows the description of only one metric at a time."""
    leaning = re.compile(r"(Those|The same|Their|Of th|Changes of it|One of them|As )")
    assert [name for name, meaning in meanings().items() if leaning.match(meaning)] == []
