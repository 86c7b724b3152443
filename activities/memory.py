"""What the C library keeps of freed memory: of glibc as little as pays, of any other what it likes."""

import ctypes
from collections.abc import Callable
from typing import NamedTuple

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGE_BYTES = 5 * 512 * 1024  # the pieces that are read and written are smaller, and better used again
_SPARE_BYTES = 8 * 1024 * 1024
_MANY_LINES = 10_000  # below, it is not worth the while


class Malloc(NamedTuple):
    """Of glibc: both return 1 where they had an effect."""

    mallopt: Callable[[int, int], int]
    malloc_trim: Callable[[int], int]


def of_this_process() -> Malloc | None:
    """None where the C library is another than glibc."""
    try:
        library = ctypes.CDLL(None)
        return Malloc(library.mallopt, library.malloc_trim)
    except (AttributeError, OSError, TypeError):
        return None


def keep_large_pieces_apart(malloc: Malloc | None) -> bool:
    """Large pieces go back to the system once they are free. Whether that was heard; first of all calls.

    By itself glibc stops doing so with the first such piece that is freed: from then on the arrays of a large
    batch lie among small pieces, which keep the process from giving them back.
    """
    if malloc is None:
        return False
    apart = malloc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    return bool(apart and malloc.mallopt(_M_TRIM_THRESHOLD, _SPARE_BYTES))


def give_back(malloc: Malloc | None, lines: int) -> bool:
    """After a batch of so many lines: free pages between pieces in use go back. Whether there were any."""
    return malloc is not None and lines >= _MANY_LINES and bool(malloc.malloc_trim(0))
