"""Rejects test runs in which a test passes only at its second try, unless the test is listed here.

A second try would hide a defect that shows only in some runs (decision 0053).
"""

from collections.abc import Generator

import pytest

# A test's id, and why a failure of its first try cannot be a defect of this project.
TESTS: dict[str, str] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid in TESTS:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Print the failures of first tries after pytest's own summary.

    If a test that is not listed needed a second try, fail the run.
    """
    yield
    terminal: pytest.TerminalReporter | None = session.config.pluginmanager.get_plugin("terminalreporter")
    first_tries: list[pytest.TestReport] = terminal.getreports("rerun") if terminal else []
    if terminal is None or not first_tries:
        return
    terminal.section("FAILED AT THE FIRST TRY", red=True)
    for failure in first_tries:
        terminal.section(failure.nodeid, sep="_", red=True)
        terminal.line(TESTS.get(failure.nodeid, "It is not listed in tests/second_tries.py: the run fails."))
        terminal.line(failure.longreprtext)
        for title, text in failure.sections:
            terminal.section(title, sep="-")
            terminal.line(text)
    unlisted = sorted({failure.nodeid for failure in first_tries} - TESTS.keys())
    terminal.section(
        f"{len(first_tries)} failed at the first try, {len(unlisted)} of them not listed", red=True
    )
    if unlisted and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
