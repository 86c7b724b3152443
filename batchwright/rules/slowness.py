"""How slow a backend is now against its usual self, whatever the sizes of its answers."""

import math
from collections.abc import Hashable

_KINDS = 512
_LEARN = 0.05  # of a kind's usual difference, with each answer of a window
_FALL, _RISE = 0.5, 0.02  # of the baseline towards a level, with each window


class Slowness:
    """log(seconds) of an answer = the level that all share + what is usual for its kind + chance.

    A kind is what makes answers alike: the model and about how long the answer is. Because the level is
    shared, ten long answers after ten short ones are no slowdown, and one model's answers tell of another's.
    The baseline follows levels below it at once and those above it slowly.
    """

    def __init__(self) -> None:
        self._usual: dict[Hashable, float] = {}
        self._seen: dict[Hashable, tuple[int, float]] = {}  # answers of the window, and their levels' sum
        self._level: float | None = None
        self.baseline: float | None = None

    def sample(self, kind: Hashable, seconds: float) -> float:
        """The level that one answer of the window shows by itself."""
        value = math.log(max(seconds, 1e-4))
        usual = self._usual.get(kind)
        if usual is None:
            if len(self._usual) >= _KINDS:
                self._usual.clear()
            self._level = value if self._level is None else self._level
            usual = self._usual[kind] = value - self._level
        level = value - usual
        answers, levels = self._seen.get(kind, (0, 0.0))
        self._seen[kind] = (answers + 1, levels + level)
        return level

    def take(self, level: float) -> None:
        """The window is over, with this mean of its samples: kinds that differed from it are learned."""
        for kind, (answers, levels) in self._seen.items():
            if kind in self._usual:
                self._usual[kind] += min(0.5, answers * _LEARN) * (levels / answers - level)
        self._seen.clear()
        self._level = level
        if self.baseline is None:
            self.baseline = level
        else:
            self.baseline += (_FALL if level < self.baseline else _RISE) * (level - self.baseline)

    def forget(self) -> None:
        """Another window begins; what was seen in this one is not comparable."""
        self._seen.clear()

    def accept(self, level: float) -> None:
        """What was taken for slow is how it is."""
        self._level = self.baseline = level

    def times(self, level: float) -> float:
        """How many times slower than usual."""
        return 1.0 if self.baseline is None else math.exp(level - self.baseline)
