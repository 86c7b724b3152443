"""Whether a backend refuses because of how much is in flight, or refuses some requests whatever is.

Of a backend with room for C, refusals are the share 1 - C/L among L requests in flight: with less in flight
they become fewer, and soon there are none. A gateway that fails now and then refuses the same share at any L:
there, less in flight only loses throughput. The two are told apart by comparing what was sent among many with
what was sent among fewer.
"""

import math
from collections import deque
from dataclasses import dataclass

_REMEMBERED, _ENOUGH = 128, 16  # outcomes: in all, and of many or few to be compared
_FEW = 0.75  # of the most in flight: the border between many and few
_MOST_SHARE = 1 / 3  # above it the backend is busy, perhaps with others: it is given way to
_CHANCE = 3.0  # standard deviations
_FOLLOW = 0.25  # of the way from the usual share to a new one
_LOWEST, _SLIGHT = 0.7, 0.05  # of what was in flight


@dataclass(slots=True)
class Congestion:
    """Refusals that were on their way together lower a limit once: by as many, at most to 70 %."""

    since: float = -math.inf
    used: float = 1.0  # in flight then
    refused: int = 0

    def lowered(self, used: float, *, sent_at: float, now: float, span: float) -> float:
        """The limit that one more leaves; `span` is how long such a time lasts at least."""
        if sent_at >= self.since and now - self.since >= span:
            self.since, self.used, self.refused = now, used, 0
        self.refused += 1
        return max(self.used - self.refused, self.used * _LOWEST)

    @property
    def is_slight(self) -> bool:
        return self.refused < _SLIGHT * self.used


class Refusals:
    """The latest outcomes of one backend, and the share of refusals that is usual for it."""

    def __init__(self) -> None:
        self.usual = 0.0
        self._seen: deque[tuple[int, bool]] = deque(maxlen=_REMEMBERED)
        self._refused = self._sampled = 0

    def sample(self, among: int, *, refused: bool) -> None:
        """An outcome; `among` so many in flight it was sent, itself included."""
        if self._refused and len(self._seen) == _REMEMBERED:
            self._refused -= self._seen[0][1]
        self._seen.append((among, refused))
        if refused:
            self._refused += 1
        self._sampled += 1
        if self._sampled % _REMEMBERED == 0:
            self._follow(self._refused / _REMEMBERED)

    def _follow(self, share: float) -> None:
        if self.usual:
            self.usual = min(self.usual + _FOLLOW * (share - self.usual), _MOST_SHARE)

    def are_usual(self) -> bool:
        """There are no more of them than there always are, give or take chance."""
        if not self.usual:
            return False
        expected = self.usual * len(self._seen)
        return self._refused <= expected + _CHANCE * math.sqrt(expected * (1 - self.usual)) + 1

    def in_vain(self) -> int:
        """How many were in flight before less was tried, where less made no difference; otherwise 0.

        From then on so many refusals are usual.
        """
        most = max((among for among, _ in self._seen), default=0)
        many = [(among, refused) for among, refused in self._seen if among > _FEW * most]
        few = [(among, refused) for among, refused in self._seen if among <= _FEW * most]
        if min(len(many), len(few)) < _ENOUGH:
            return 0
        share = _refused(few)
        crowded = max(0.0, 1 - (1 - _refused(many)) * _among(many) / _among(few))  # if that were the reason
        if not 0 < share <= _MOST_SHARE or share <= (crowded + _refused(many)) / 2:
            return 0
        self.usual = self._refused / len(self._seen)
        self._seen.clear()
        self._refused = self._sampled = 0
        return most


def _refused(outcomes: list[tuple[int, bool]]) -> float:
    return sum(refused for _, refused in outcomes) / len(outcomes)


def _among(outcomes: list[tuple[int, bool]]) -> float:
    return sum(among for among, _ in outcomes) / len(outcomes)
