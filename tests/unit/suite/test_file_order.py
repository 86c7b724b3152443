"""Which process of pytest-xdist gets which test files."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.file_order import WITH_SHARED_STACK

ROOT = Path(__file__).parents[3]
_PLUGINS = ("--disable-plugin-autoload", "-p", "xdist.plugin", "-p", "tests.file_order")
_TEST = """
import os
import time
from pathlib import Path

def test_one():
    end = time.monotonic() + 60
    while {waits} and len(list(Path({ran!r}).glob("unit*"))) < 24:
        assert time.monotonic() < end, "the other files do not run meanwhile"
        time.sleep(0.01)
    (Path({ran!r}) / {name!r}).with_suffix(f".{{time.monotonic_ns()}}").write_text(
        os.environ["PYTEST_XDIST_WORKER"]
    )

test_two = test_three = test_one  # a process gets its next file when two tests are left
"""


def test_all_files_with_the_shared_stack_are_listed_unless_they_are_slow() -> None:
    found = {
        str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests/e2e").rglob("test_*.py")
    }
    assert {
        name
        for name, text in found.items()
        if re.search(r"\bstack: Stack\b", text)
        and "pytest.mark.slow" not in text
        and not re.search(r"^(async )?def stack\(", text, re.MULTILINE)
    } == WITH_SHARED_STACK.keys()


def test_each_shared_stack_has_one_process_and_one_runs_other_files_while_tests_wait(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    ran.mkdir()
    waiting = {file: stack.replace(" ", "-") for file, stack in WITH_SHARED_STACK.items()}
    stacks = Counter(waiting.values())
    assert len(stacks) == 2
    units = {f"tests/unit/test_{number}.py": f"unit{number}" for number in range(8)}
    for file, name in (waiting | units).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(_TEST.format(ran=str(ran), name=name, waits=file in waiting))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-n", "3", "--dist", "loadfile", "--import-mode=importlib"]
    subprocess.run([*command, *_PLUGINS, "--rootdir", str(tmp_path), str(tmp_path)], check=True, cwd=ROOT)
    by = {name: [path.read_text() for path in ran.glob(f"{name}*")] for name in (*stacks, "unit")}
    assert {name: (len(each), len(set(each))) for name, each in by.items()} == {
        **{stack: (3 * files, 1) for stack, files in stacks.items()},
        "unit": (24, 1),
    }
