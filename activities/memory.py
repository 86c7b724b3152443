"""Return freed memory to the operating system. This works only if the C library is glibc."""

import ctypes
from collections.abc import Callable
from typing import NamedTuple

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # constants of malloc.h
_LARGE_BLOCK_BYTES = 5 * 512 * 1024  # larger than the pieces of files in memory, which are reused
_SPARE_BYTES = 8 * 1024 * 1024
_MIN_LINES = 10_000  # for fewer lines, the call is not worth its time


class Malloc(NamedTuple):
    """The functions `mallopt` and `malloc_trim` of glibc. Each returns 1 if it had an effect, otherwise 0."""

    mallopt: Callable[[int, int], int]
    malloc_trim: Callable[[int], int]


def glibc_malloc() -> Malloc | None:
    """Return glibc's memory functions; None if the process uses another C library."""
    try:
        library = ctypes.CDLL(None)
        return Malloc(library.mallopt, library.malloc_trim)
    except (AttributeError, OSError, TypeError):
        return None


def return_large_blocks(malloc: Malloc | None) -> bool:
    """Make glibc return large memory blocks to the system when they are freed. Return True if glibc agreed.

    Call this before all other code of the process. Without this call, glibc changes its behavior after some
    large arrays were freed. It then places new large arrays between small blocks, and cannot return the
    memory of these arrays to the system.

    Args:
        malloc: result of `glibc_malloc`. If it is None, nothing is done and False is returned.
    """
    if malloc is None:
        return False
    apart = malloc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
    return bool(apart and malloc.mallopt(_M_TRIM_THRESHOLD, _SPARE_BYTES))


def release_free_pages(malloc: Malloc | None, lines: int) -> bool:
    """Return unused memory to the system after a batch. Return True if there was any.

    Args:
        malloc: result of `glibc_malloc`. If it is None, nothing is done and False is returned.
        lines: number of lines of the batch. Below 10,000 lines, nothing is done and False is returned.
    """
    return malloc is not None and lines >= _MIN_LINES and bool(malloc.malloc_trim(0))
