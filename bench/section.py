"""The type of a section (a part of the benchmark), and the options that every section receives."""

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
        rounds: number of times that each measurement is made.
        quick: True to use small inputs.
        with_peers: True to measure also the alternatives to Batchwright that are slow.
        peers_python: Python interpreter in which the packages of these alternatives are installed; None if
            there is no such interpreter.
    """

    folder: Path
    rounds: int = 5
    quick: bool = False
    with_peers: bool = True
    peers_python: Path | None = None

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def turns(self, seconds: float, rounds: int | None = None) -> Iterator[int]:
        """Yield the number of each round, from 1. In each round, the caller makes all its measurements.

        The iteration ends after `rounds` rounds (None for `self.rounds`). It ends earlier if a round ends
        more than `seconds` after the start of the first round.
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
    """A section (part) of the benchmark, such as ingestion. Its values (figures) are measured together.

    Attributes:
        setting: description of the measured situation, for readers of the results.
        minutes: longest duration of `measure` on a machine without other load.
        measure: function that runs the section and returns its figures.
        on_the_page: True if the published results must include this section.
    """

    name: str
    title: str
    setting: str
    minutes: float
    measure: Callable[[SectionOptions], list[Figure]]
    on_the_page: bool = True
