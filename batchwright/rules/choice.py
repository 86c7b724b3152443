"""Which of several backends gets a request: the less busy of two, or the one that saw the prefix before."""

import math
import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

# How much busier than the least busy one a backend may be and still be chosen for its prefixes.
_AFFINE_FACTOR, _AFFINE_SLACK = 2.0, 4


class Place(Protocol):
    @property
    def key(self) -> str:
        """What tells it from others, the same in every process."""
        ...

    @property
    def weight(self) -> float: ...

    @property
    def outstanding(self) -> int:
        """Requests it has not answered yet."""
        ...


_Place = TypeVar("_Place", bound=Place)


def least_outstanding(places: Sequence[_Place], draw: Callable[[], float] = random.random) -> _Place:
    """Of two drawn by weight, the one with less to do for its weight; of equals the first drawn."""
    first = _drawn(places, draw())
    others = [place for place in places if place is not first]
    if not others:
        return first
    second = _drawn(others, draw())
    return second if _load(second) < _load(first) else first


def prefix_affine(
    places: Sequence[_Place], prefix_hash: int, draw: Callable[[], float] = random.random
) -> _Place:
    """The same one for the same prefix, unless it is far busier than others; without a prefix, any.

    A place that comes or goes moves only the prefixes that were or will be its own.
    """
    if not prefix_hash:
        return least_outstanding(places, draw)
    most = _AFFINE_FACTOR * min(place.outstanding / place.weight for place in places) + _AFFINE_SLACK
    ranked = sorted(places, key=lambda place: _score(place, prefix_hash), reverse=True)
    return next(place for place in ranked if place.outstanding / place.weight <= most)


def _drawn(places: Sequence[_Place], drawn: float) -> _Place:
    left = drawn * sum(place.weight for place in places)
    for place in places:
        left -= place.weight
        if left < 0:
            return place
    return places[-1]


def _load(place: Place) -> float:
    return (place.outstanding + 1) / place.weight


def _score(place: Place, prefix_hash: int) -> float:
    """Rendezvous: the highest wins, each as often as its weight says."""
    digest = blake2b(b"%d %b" % (prefix_hash, place.key.encode()), digest_size=8).digest()
    share = (int.from_bytes(digest) + 1) / (2**64 + 2)
    return -place.weight / math.log(share)
