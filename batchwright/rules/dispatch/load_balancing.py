"""Choose a backend for a request.

There are two ways: draw two backends at random and take the less busy one, or take the backend that has
cached the beginning (prefix) of the prompt.
"""

import math
import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

# A backend gets its prefixes up to this factor times the load of the least busy backend, plus slack.
_AFFINE_FACTOR, _AFFINE_SLACK = 2.0, 4


class BalancedBackend(Protocol):
    """A backend with the properties that are needed to balance load between backends."""

    @property
    def key(self) -> str:
        """Id of the backend, which is the same in every process."""
        ...

    @property
    def weight(self) -> float: ...

    @property
    def outstanding(self) -> int:
        """Number of requests in flight."""
        ...


_Candidate = TypeVar("_Candidate", bound=BalancedBackend)


def least_outstanding(
    backends: Sequence[_Candidate], draw: Callable[[], float] = random.random
) -> _Candidate:
    """Draw two backends at random by weight, and return the less busy one.

    A backend is busier if it has more requests in flight in proportion to its weight. If both backends are
    equally busy, the backend that was drawn first is returned.

    Args:
        backends: the backends to choose from, at least one.
        draw: returns a random number from 0 to 1.
    """
    first = _pick(backends, draw())
    others = [backend for backend in backends if backend is not first]
    if not others:
        return first
    second = _pick(others, draw())
    return second if _load(second) < _load(first) else first


def prefix_affine(
    backends: Sequence[_Candidate], prefix_hash: int, draw: Callable[[], float] = random.random
) -> _Candidate:
    """Choose the backend that has probably cached the prefix (system prompt) of a request.

    Each prefix has a fixed sequence of backends. Return the first backend in this sequence that is not far
    busier than the least busy backend. If a backend is added or removed, most prefixes keep their first
    backend.

    Args:
        backends: the backends to choose from, at least one.
        prefix_hash: hash of the prefix. 0 means that there is no prefix. Then two backends are drawn at
            random, and the less busy one is returned.
        draw: returns a random number from 0 to 1.
    """
    if not prefix_hash:
        return least_outstanding(backends, draw)
    max_load = (
        _AFFINE_FACTOR * min(backend.outstanding / backend.weight for backend in backends) + _AFFINE_SLACK
    )
    ranked = sorted(backends, key=lambda backend: _score(backend, prefix_hash), reverse=True)
    return next(backend for backend in ranked if backend.outstanding / backend.weight <= max_load)


def _pick(backends: Sequence[_Candidate], position: float) -> _Candidate:
    left = position * sum(backend.weight for backend in backends)
    for backend in backends:
        left -= backend.weight
        if left < 0:
            return backend
    return backends[-1]


def _load(backend: BalancedBackend) -> float:
    return (backend.outstanding + 1) / backend.weight


def _score(backend: BalancedBackend, prefix_hash: int) -> float:
    """Return how well a backend suits a prompt prefix (system prompt).

    Lines with this prefix go to the backend with the best score. This is rendezvous hashing: over many
    prefixes, each backend gets a part in proportion to its weight.
    """
    digest = blake2b(b"%d %b" % (prefix_hash, backend.key.encode()), digest_size=8).digest()
    fraction = (int.from_bytes(digest) + 1) / (2**64 + 2)
    return -backend.weight / math.log(fraction)
