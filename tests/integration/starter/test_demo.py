"""`batchwright demo`, as a new user runs it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from batchwright.starter.embedded_stack.demo_batch import DemoResult

pytestmark = pytest.mark.e2e


def demo(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "batchwright.starter", "demo", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "80"},
    )


def test_the_demo_completes_and_prints_where_everything_is(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1,000 requests, 985 answered, 15 failed as intended" in done.stdout
    assert re.search(r"http://127\.0\.0\.1:\d+/namespaces/default/workflows/batch_\w+", done.stdout)
    (folder,) = tmp_path.glob("batchwright-demo-*")
    assert f"batchwright dev --data {folder}/stack" in done.stdout
    assert len((folder / "output.jsonl").read_text().splitlines()) == 985
    assert len((folder / "errors.jsonl").read_text().splitlines()) == 15
    assert not (folder / "stack" / "dev.json").exists()


@pytest.mark.slow
def test_the_demo_prints_one_json_line_for_programs(tmp_path: Path) -> None:
    done = demo(tmp_path, "--json")
    result = DemoResult.model_validate_json(done.stdout)
    assert (done.returncode, result.as_expected) == (0, True)
    assert result.output_file.parent == result.data


def test_a_demo_that_is_stopped_early_says_how_to_delete_its_data(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "batchwright.starter", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "80"},
    ) as running:
        assert running.stdout is not None
        assert "Starting" in running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, said = running.communicate()
    (folder,) = tmp_path.glob("batchwright-demo-*")
    assert running.returncode == 1
    assert f"`rm -r {folder}` deletes its data." in " ".join(said.split())
