"""Tests that need a real S3 server: without one they are skipped, or fail if it is required."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_REQUIRED = "BATCHWRIGHT_TEST_S3_REQUIRED"


def run_without_server(**variables: str) -> "subprocess.CompletedProcess[str]":
    ours = ("BATCHWRIGHT_TEST_S3_URL", _REQUIRED, "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    command = [sys.executable, "-m", "pytest", "-n", "0", "tests/integration/storage/test_s3_real.py"]
    return subprocess.run(
        command, cwd=_ROOT, env=environment | variables, capture_output=True, text=True, timeout=300
    )


@pytest.mark.integration
def test_tests_of_a_real_s3_server_are_skipped_without_one_and_the_run_says_so() -> None:
    ended = run_without_server()
    assert (ended.returncode, "2 skipped" in ended.stdout) == (0, True)
    assert "BATCHWRIGHT_TEST_S3_URL names no S3 server" in ended.stdout


@pytest.mark.integration
def test_tests_of_a_real_s3_server_fail_without_one_if_it_is_required() -> None:
    ended = run_without_server(**{_REQUIRED: "1"})
    assert (ended.returncode, "2 errors" in ended.stdout) == (1, True)
    assert "BATCHWRIGHT_TEST_S3_URL names no S3 server" in ended.stdout


def test_ci_requires_the_real_s3_server() -> None:
    [command] = [
        line
        for line in (_ROOT / ".ci/run").read_text().splitlines()
        if "make test" in line and "real-s3" in line
    ]
    assert re.fullmatch(
        rf"{_REQUIRED}=1( [A-Z0-9_]+=1)* tests/tools/real-s3 run make test test-slow", command
    )
