"""A folder that all processes of a test run share. It is deleted when the run ends."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

_VARIABLE = "TEST_RUN_FOLDER"


def open_run_folder(config: pytest.Config) -> None:
    """Create the folder, unless this is a process of pytest-xdist."""
    if hasattr(config, "workerinput"):
        return  # it inherits the variable
    folder = tempfile.mkdtemp(prefix="batchwright-test-run-")
    os.environ[_VARIABLE] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def run_folder() -> Path:
    return Path(os.environ[_VARIABLE])
