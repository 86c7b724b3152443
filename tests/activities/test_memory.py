"""Calls to the C library that return freed memory to the operating system."""

from ctypes import CDLL

import pytest

from batchwright.activities import memory


class Library:
    """A stand-in for glibc. Its functions return `answer`."""

    def __init__(self, answer: int = 1) -> None:
        self.answer = answer
        self.calls: list[tuple[int, int]] = []
        self.trimmed = 0
        self.malloc = memory.Malloc(self.mallopt, self.malloc_trim)

    def mallopt(self, parameter: int, value: int) -> int:
        self.calls.append((parameter, value))
        return self.answer

    def malloc_trim(self, spare: int) -> int:
        self.trimmed += 1
        return self.answer


def test_large_allocations_have_their_own_mapping_and_read_buffers_are_not_large() -> None:
    library = Library()
    assert memory.return_large_blocks(library.malloc)
    (apart, large), (spare, _) = library.calls
    assert (apart, spare) == (-3, -1)
    assert large > 1024 * 1024


def test_a_library_that_refuses_is_not_called_again() -> None:
    library = Library(answer=0)
    assert not memory.return_large_blocks(library.malloc)
    assert len(library.calls) == 1


@pytest.mark.parametrize(("lines", "times"), [(100, 0), (50_000, 1)])
def test_freed_pages_are_returned_only_after_a_large_batch(lines: int, times: int) -> None:
    library = Library()
    assert memory.release_free_pages(library.malloc, lines) == bool(times)
    assert library.trimmed == times


def test_without_glibc_no_memory_setting_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Another:
        def __init__(self, name: None) -> None:
            pass

    monkeypatch.setattr("ctypes.CDLL", Another)
    found = memory.glibc_malloc()
    assert found is None
    assert not memory.return_large_blocks(found)
    assert not memory.release_free_pages(found, 1_000_000)


def test_this_process_answers_as_its_library_does() -> None:
    has_it = hasattr(CDLL(None), "malloc_trim")
    assert (memory.glibc_malloc() is not None) == has_it
