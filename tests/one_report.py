"""Sends one report of each test that passes to the main process of pytest-xdist, instead of three.

The main process would spend half of its time on reports of setups and teardowns that passed. They contain
nothing but durations, so they are sent only with the option `--durations`. Tests that may have several tries
are left to pytest-rerunfailures.
"""

import pytest
from _pytest.runner import runtestprotocol

_OPTIONS = ("durations", "reruns", "force_reruns")  # they need all reports, or the protocol of another plugin


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run the test as pytest does. Return None if pytest or another plugin is to do it."""
    is_worker = hasattr(item.config, "workerinput")
    others = any(item.config.getoption(name, None) is not None for name in _OPTIONS)
    if not is_worker or others or item.get_closest_marker("flaky"):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
