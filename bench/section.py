"""Definition of a section of the benchmark, and of the options that each section receives."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.results import Figure


@dataclass(frozen=True)
class SectionOptions:
    """Options of a benchmark run.

    Attributes:
        folder: Temporary directory for files.
        rounds: Number of times that each measurement is repeated.
        quick: Use small inputs.
        with_peers: Also measure slow alternatives.
        peers_python: Interpreter that has the alternatives that are not among our dependencies. None if
            missing.
    """

    folder: Path
    rounds: int = 5
    quick: bool = False
    with_peers: bool = True
    peers_python: Path | None = None

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def turns(self, seconds: float, rounds: int | None = None) -> Iterator[int]:
        """Yield the numbers of the rounds, from 1.

        After at least one round, stop once `seconds` have passed.
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
        setting: Describes for readers what is run.
        minutes: Longest duration of `measure` on a machine without other load.
        measure: Runs the section and returns its figures.
        on_the_page: The published figures must include this section.
    """

    name: str
    title: str
    setting: str
    minutes: float
    measure: Callable[[SectionOptions], list[Figure]]
    on_the_page: bool = True
