"""Sorts the test files: files with real servers and processes and files with slow tests come first, then all
others.

pytest-xdist distributes files in this order. Tests with a server mostly wait, so other tests use the
processor meanwhile. If they came last, they would still run while other workers have nothing to do. Slow
tests without a server are simulations. They use the processor while tests with a server wait.
"""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by kind of file. The order of tests within a file stays the same."""
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    items[:] = [item for tests in sorted(by_file.values(), key=_rank) for item in tests]


def _rank(tests: list[pytest.Item]) -> tuple[int, int]:
    if any(test.get_closest_marker("e2e") or test.get_closest_marker("slow") for test in tests):
        return 0, -len(tests)
    has_server = all(test.get_closest_marker("integration") for test in tests)
    return (1 if has_server else 2), -len(tests)
