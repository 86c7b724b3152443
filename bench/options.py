"""How large and how often a section measures, and what it says meanwhile."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """`folder` is scratch space. `with_peers`: the slow ones too.

    `peers_python` has the peers that are not among our libraries.
    """

    folder: Path
    rounds: int = 5
    quick: bool = False
    with_peers: bool = True
    peers_python: Path | None = None

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def turns(self, seconds: float, rounds: int | None = None) -> Iterator[int]:
        """Numbers of the rounds, until there are enough or `seconds` are over; at least one."""
        started = time.monotonic()
        for number in range(1, (rounds or self.rounds) + 1):
            yield number
            if time.monotonic() - started > seconds:
                return

    def say(self, text: str) -> None:
        print(f"    {text}", flush=True)
