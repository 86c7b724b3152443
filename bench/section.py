"""What a section of the benchmark is."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.options import Options
from bench.results import Figure


@dataclass(frozen=True)
class Section:
    """`setting` says what was run; `measure` does it, in less than `minutes` on a quiet machine.

    The figures kept for the page have all sections that are `on_the_page`.
    """

    name: str
    title: str
    setting: str
    minutes: float
    measure: Callable[[Options], list[Figure]]
    on_the_page: bool = True
