"""Tests with real servers get a second try, and what failed in the first is told at the end.

A machine that stands still for a minute, or a port that is taken, fails such a test without a defect of
ours; a defect that shows once in a hundred runs looks the same. So the run goes on, and the first failure
is printed whole (decision 0053). What runs in one process has no such excuse, and no second try.
"""

import pytest

_REAL = ("e2e", "integration", "prometheus", "cluster")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(name) for name in _REAL):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    failures = terminalreporter.getreports("rerun")
    if not failures:
        return
    terminalreporter.section("FAILED AT THE FIRST TRY: each may be a defect", red=True)
    for failure in failures:
        terminalreporter.section(failure.nodeid, sep="_", red=True)
        terminalreporter.line(failure.longreprtext)
        for title, text in failure.sections:
            terminalreporter.section(title, sep="-")
            terminalreporter.line(text)
