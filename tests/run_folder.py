"""A folder that all processes of a test run share. It is deleted when the run ends."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_VARIABLE = "TEST_RUN_FOLDER"


def open_run_folder(add_cleanup: Callable[[Callable[[], None]], object]) -> None:
    """Create the folder for this process and the processes that it starts.

    Args:
        add_cleanup: is called with a function that deletes the folder. The run must call this function at its
            end.
    """
    folder = tempfile.mkdtemp(prefix="batchwright-test-run-")
    os.environ[_VARIABLE] = folder
    add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def run_folder() -> Path:
    return Path(os.environ[_VARIABLE])
