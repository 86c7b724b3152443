"""What the C library is told to do with freed memory."""

from ctypes import CDLL

import pytest

from activities import memory


class Library:
    """Of glibc; `answer` is what its functions return."""

    def __init__(self, answer: int = 1) -> None:
        self.answer = answer
        self.told: list[tuple[int, int]] = []
        self.trimmed = 0
        self.malloc = memory.Malloc(self.mallopt, self.malloc_trim)

    def mallopt(self, parameter: int, value: int) -> int:
        self.told.append((parameter, value))
        return self.answer

    def malloc_trim(self, spare: int) -> int:
        self.trimmed += 1
        return self.answer


def test_large_pieces_are_kept_apart_and_those_that_are_read_are_not_large() -> None:
    library = Library()
    assert memory.keep_large_pieces_apart(library.malloc)
    (apart, large), (spare, _) = library.told
    assert (apart, spare) == (-3, -1)
    assert large > 1024 * 1024


def test_a_library_that_refuses_is_told_no_more() -> None:
    library = Library(answer=0)
    assert not memory.keep_large_pieces_apart(library.malloc)
    assert len(library.told) == 1


@pytest.mark.parametrize(("lines", "times"), [(100, 0), (50_000, 1)])
def test_freed_pages_go_back_after_a_large_batch_alone(lines: int, times: int) -> None:
    library = Library()
    assert memory.give_back(library.malloc, lines) == bool(times)
    assert library.trimmed == times


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    class Another:
        def __init__(self, name: None) -> None:
            pass

    monkeypatch.setattr("ctypes.CDLL", Another)
    found = memory.of_this_process()
    assert found is None
    assert not memory.keep_large_pieces_apart(found)
    assert not memory.give_back(found, 1_000_000)


def test_this_process_answers_as_its_library_does() -> None:
    has_it = hasattr(CDLL(None), "malloc_trim")
    assert (memory.of_this_process() is not None) == has_it
