"""Runs and measures a peer (alternative to Batchwright). Every peer calls `run` as its main function.

The module uses only the standard library, because some peers run in a Python without Batchwright's
dependencies.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PeerJob:
    """The task of a peer, a program with which Batchwright is compared.

    The peer sends the lines of the file `path` to the backend `url`, and appends the responses to the file
    `out`. `url` does not include /v1. `in_flight` is the number of requests that the peer has in flight.
    """

    url: str
    path: Path
    out: Path
    in_flight: int


def run(loop: Callable[[PeerJob], int]) -> None:
    """Call `loop` once with the job that the arguments of the command line describe.

    Print as JSON the number of responses, the duration in seconds, and the CPU time and memory of the
    process.

    Args:
        loop: function that sends all requests of the job, and returns the number of responses.
    """
    url, path, out, in_flight = sys.argv[1:]
    job = PeerJob(url, Path(path), Path(out), int(in_flight))
    job.out.unlink(missing_ok=True)
    cpu, started = time.process_time(), time.perf_counter()
    requests = loop(job)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    measured = {"requests": requests, "seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mib": peak_mib}
    print(json.dumps(measured))
