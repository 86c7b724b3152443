"""Sorts the test files, and distributes them to the processes of pytest-xdist.

Tests that start servers and processes mostly wait. If all processes ran such tests at the same time, the
processor would be idle. If such tests came last, they would run alone at the end. So all processes but one
begin with the files of such tests, and one process runs the other files meanwhile. Afterwards, all processes
run the other files.
"""

import re
from collections.abc import Iterator

import pytest
from xdist.remote import Producer  # pyright: ignore[reportMissingTypeStubs]
from xdist.scheduler import LoadFileScheduling, Scheduling  # pyright: ignore[reportMissingTypeStubs]
from xdist.workermanage import WorkerController  # pyright: ignore[reportMissingTypeStubs]

# One process runs all files of a line with the shared stack of `tests/e2e`, which takes 7 seconds of CPU to
# start. One process for all of them would end last. Files with slow tests are not listed.
_SHARED_STACKS = (
    ("failures/test_outage", "features/test_batches", "features/test_calls", "features/test_live_results"),
    ("failures/test_survival", "failures/test_webhooks", "features/test_folder"),
)
WITH_SHARED_STACK = {
    f"tests/e2e/{file}.py": f"shared stack {number}"
    for number, files in enumerate(_SHARED_STACKS)
    for file in files
}
# A few long tests of units start test runs, or processes over and over: they count as such files, too.
_LONG = "unit/suite/|unit/starter/folder/test_kills"
_WAITING = re.compile(
    rf"shared stack|tests/({_LONG})|tests/(?!unit/|activities/|replay/|integration/database/)"
)


class FileScheduling(LoadFileScheduling):
    """A scheduler that gives whole files to processes. Files with the same shared stack all go to one
    process.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return WITH_SHARED_STACK.get(file, file)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give the process its next file.

        It is the first file whose tests mostly wait. If all other processes already have such a file, it is
        the first file of another kind.
        """
        others = (other for other in self.nodes if other != node)
        waiting = sum(any(map(_WAITING.match, self._open_files(other))) for other in others)
        wanted = waiting < len(self.nodes) - 1
        found = (file for file in self.workqueue if bool(_WAITING.match(file)) is wanted)
        self.workqueue.move_to_end(next(found, next(iter(self.workqueue))), last=False)
        super()._assign_work_unit(node)

    def _open_files(self, node: WorkerController) -> Iterator[str]:
        """Yield the files of which the process has not run all tests yet."""
        return (file for file, tests in self.assigned_work[node].items() if not all(tests.values()))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None


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
    return (1 if has_server or _WAITING.match(tests[0].nodeid) else 2), -len(tests)
