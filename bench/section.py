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
        with_peers: True to measure the slow peers (alternatives to Batchwright), too.
        peers_python: Python interpreter in which LiteLLM, one of the slow peers, is installed. If it is None,
            LiteLLM is not measured.
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

        If `rounds` is None, the number of rounds is `self.rounds`. If a round ends more than `seconds` after
        the start of the first round, no further round begins.
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
