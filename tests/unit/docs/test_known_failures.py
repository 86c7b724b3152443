"""The page of other systems' failures cites a report and an existing test in each row."""

import re

from tests.unit.docs.test_requirements import ROOT, TESTS, functions_of

PAGE = ROOT / "docs/reference/known-failures.md"
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| [")]
_REPORT = re.compile(r"^\| \[[^\]]+ \d+\]\(https://github\.com/[\w-]+/[\w-]+/(issues|pull)/\d+\) \|")


def test_every_row_cites_one_report_and_at_least_one_test() -> None:
    assert len(ROWS) >= 25
    assert [
        row for row in ROWS if not _REPORT.match(row) or row.count(" | ") != 3 or not TESTS.search(row)
    ] == []


def test_every_test_that_the_page_names_exists() -> None:
    named = {found.groups() for row in ROWS for found in TESTS.finditer(row)}
    assert [(path, name) for path, name in sorted(named) if name not in functions_of(path)] == []


def test_no_report_comes_twice() -> None:
    reports = [row.split("](")[1].split(")")[0] for row in ROWS]
    assert len(reports) == len(set(reports))
