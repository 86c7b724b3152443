"""What each peer's process does: time a loop over a batch's lines. Standard library only.

It also runs under a Python that has none of our libraries.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """The lines of `path` go to `url` (the backend, without /v1); answers are appended to `out`."""

    url: str
    path: Path
    out: Path
    in_flight: int


def run(loop: Callable[[Job], int]) -> None:
    """Measures `loop`, which returns how many answers it wrote, and prints that as JSON."""
    url, path, out, in_flight = sys.argv[1:]
    job = Job(url, Path(path), Path(out), int(in_flight))
    job.out.unlink(missing_ok=True)
    cpu, started = time.process_time(), time.perf_counter()
    requests = loop(job)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    measured = {"requests": requests, "seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mib": peak_mib}
    print(json.dumps(measured))
