"""Runs a peer (alternative to Batchwright) in a separate process, and reads its result."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

_ROOT = Path(__file__).parents[2]


class Measured(msgspec.Struct, frozen=True):
    """Result of one run of a peer, a program with which Batchwright is compared.

    It has the number of responses, the duration, and the CPU time and memory of the peer's process.
    """

    requests: int
    seconds: float
    cpu_seconds: float
    peak_mib: float

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU time per request in microseconds."""
        return self.cpu_seconds / self.requests * 1e6


def measure(name: str, url: str, path: Path, in_flight: int, python: Path | None = None) -> Measured:
    """Run the peer `name`, which is a module in bench.peers, and return its result.

    Args:
        in_flight: number of requests that the peer has in flight.
        python: Python interpreter that runs the peer; None for the current one.

    Raises:
        subprocess.CalledProcessError: the peer failed.
    """
    out = path.with_suffix(f".{name}")
    environment = os.environ | {"NO_PROXY": "*"}
    command = [str(python or sys.executable), "-m", f"bench.peers.{name}", url, str(path), str(out)]
    answer = subprocess.run(
        [*command, str(in_flight)], check=True, stdout=subprocess.PIPE, cwd=_ROOT, env=environment
    ).stdout
    out.unlink(missing_ok=True)
    return msgspec.json.decode(answer.splitlines()[-1], type=Measured)
