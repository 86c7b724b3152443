"""Runs a peer as a process and reads what it measured."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

_ROOT = Path(__file__).parents[2]


class Measured(msgspec.Struct, frozen=True):
    """One run; CPU and memory are those of the sending process."""

    requests: int
    seconds: float
    cpu_seconds: float
    peak_mib: float

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    @property
    def cpu_us(self) -> float:
        """A request's."""
        return self.cpu_seconds / self.requests * 1e6


def measure(name: str, url: str, path: Path, in_flight: int, python: Path | None = None) -> Measured:
    """`name` is a module beside this one; `python` another one than ours.

    Raises subprocess.CalledProcessError where the peer fails.
    """
    out = path.with_suffix(f".{name}")
    environment = os.environ | {"NO_PROXY": "*"}
    command = [str(python or sys.executable), "-m", f"bench.peers.{name}", url, str(path), str(out)]
    answer = subprocess.run(
        [*command, str(in_flight)], check=True, stdout=subprocess.PIPE, cwd=_ROOT, env=environment
    ).stdout
    out.unlink(missing_ok=True)
    return msgspec.json.decode(answer.splitlines()[-1], type=Measured)
