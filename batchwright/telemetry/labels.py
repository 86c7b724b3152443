"""Label values that come from outside, kept few."""

from collections.abc import Mapping

OTHER = "other"


class Bounded:
    """The first `most` values keep their name for the life of the process, all others are `other`.

    For counters: a value that lost its place to a busier one would fall, and a rate of it would be wrong.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._known:
            return value
        if len(self._known) >= self.most:
            return OTHER
        self._known.add(value)
        return value


def leading(weights: Mapping[str, float], most: int) -> frozenset[str]:
    """The `most` heaviest names, for gauges: they are replaced as a whole at each look."""
    ranked = sorted(weights, key=lambda name: (-weights[name], name))
    return frozenset(ranked[:most])
