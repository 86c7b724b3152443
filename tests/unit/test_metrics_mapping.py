"""The page that compares our metrics with the sources': every requirement once, no name that is none."""

import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from batchwright.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "metrics-mapping.md"
WANTED = {
    *(f"S2-{number}" for number in range(1, 78)),
    *(f"S2-R{number}" for number in range(1, 6)),
    "S1-234",
    *(f"S1-{number}" for number in range(257, 272)),
}
NUMBER = re.compile(r"(S\d)-(R?)(\d+)(?: to S\d-R?(\d+))?")


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| S")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def numbers(cell: str) -> Iterator[str]:
    for source, kind, first, last in NUMBER.findall(cell):
        yield from (f"{source}-{kind}{number}" for number in range(int(first), int(last or first) + 1))


def named(text: str) -> set[str]:
    return set(re.findall(r"`(batchwright_\w+)`", text))


def meanings() -> dict[str, str]:
    registry = CollectorRegistry()
    Metrics(registry)
    return {
        metric.name + ("_total" if metric.type == "counter" else ""): metric.documentation
        for metric in registry.collect()
    }


def test_every_requirement_has_one_row() -> None:
    told = [number for row in rows() for number in numbers(row[0])]
    assert sorted(told) == sorted(WANTED)


def test_every_metric_on_the_page_exists_and_every_test_is_where_it_says() -> None:
    assert named(PAGE.read_text()) - meanings().keys() == set()
    for path in re.findall(r"`(tests/[\w/.]+|batchwright/[\w/.]+)`", PAGE.read_text()):
        assert (ROOT / path).exists(), path


def test_what_a_metric_says_it_is_for_stands_in_that_row() -> None:
    for name, meaning in meanings().items():
        for number in set(numbers(meaning)) & WANTED:
            (row,) = [row for row in rows() if number in numbers(row[0])]
            assert name in named(row[1]), number


def test_a_meaning_can_be_read_without_those_before_it() -> None:
    """Grafana shows one at a time."""
    leaning = re.compile(r"(Those|The same|Their|Of th|Changes of it|One of them|As )")
    assert [name for name, meaning in meanings().items() if leaning.match(meaning)] == []
