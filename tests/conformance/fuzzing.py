"""Every route against /openapi.json: no 5xx, no status and no shape that it does not tell."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conformance.requests import here

SECONDS = float(os.environ.get("BATCHWRIGHT_FUZZ_SECONDS", "30"))


def fuzz(url: str, folder: Path) -> tuple[int, str]:
    """Exit code and report of a run of SECONDS, which names its seed and how to repeat what it found."""
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(here("schemathesis.toml"))),
        *("run", url + "/openapi.json", "--max-time", str(round(SECONDS)), "--continue-on-failure"),
        *("--warnings", "off", "--no-color", "--request-timeout", "30", "--generation-database", "none"),
    ]
    run = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return run.returncode, run.stdout
