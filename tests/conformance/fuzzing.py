"""Sends random requests to all routes, and checks the responses against /openapi.json.

No response may have a 5xx status, or a status or form that is not described there.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.conformance.requests import here

_CHOSEN_SECONDS = os.environ.get("BATCHWRIGHT_FUZZ_SECONDS")
SECONDS = float(_CHOSEN_SECONDS or "30")
# The tests send the same requests in every run, so that none fails by chance. `make fuzz` looks for new ones.
_SEED = () if _CHOSEN_SECONDS else ("--seed", "1")


def fuzz(url: str, folder: Path) -> tuple[int, str]:
    """Send random requests for SECONDS. Return the program's exit code and its report.

    The report contains the seed, and says how to repeat each failure.
    """
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(here("schemathesis.toml"))),
        *("run", url + "/openapi.json", "--max-time", str(round(SECONDS)), "--continue-on-failure"),
        *("--warnings", "off", "--no-color", "--request-timeout", "120", "--generation-database", "none"),
        *_SEED,
    ]
    run = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return run.returncode, run.stdout
