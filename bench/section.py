"""Types of a section of the benchmark, and of the options that every section receives."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.results import Figure


@dataclass(frozen=True)
class SectionOptions:
    """Options of a benchmark run.

    Attributes:
        folder: temporary directory for files.
        rounds: number of times that each measurement is repeated.
        quick: True to use small inputs.
        with_peers: True to measure slow alternatives too.
        peers_python: Python interpreter that has the packages of the alternatives; None if there is none.
    """

    folder: Path
    rounds: int = 5
    quick: bool = False
    with_peers: bool = True
    peers_python: Path | None = None

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def turns(self, seconds: float, rounds: int | None = None) -> Iterator[int]:
        """Yield the numbers of the rounds, starting at 1.

        The iteration ends after `rounds` rounds (None for `self.rounds`), or after the first round that ends
        later than `seconds` after the start.
        """
        started = time.monotonic()
        for number in range(1, (rounds or self.rounds) + 1):
            yield number
            if time.monotonic() - started > seconds:
                return

    def report(self, text: str) -> None:
        print(f"    {text}", flush=True)


@dataclass(frozen=True)
class Section:
    """A section of the benchmark, such as ingestion: several figures that are measured together.

    Attributes:
        setting: description of the measured situation, for readers.
        minutes: longest duration of `measure` on a machine without other load.
        measure: runs the section and returns its figures.
        on_the_page: True if the published figures must include this section.
    """

    name: str
    title: str
    setting: str
    minutes: float
    measure: Callable[[SectionOptions], list[Figure]]
    on_the_page: bool = True
