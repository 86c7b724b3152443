"""Notes of prompts sort as the prompts do, and tell most of them apart without the prompts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules import beginnings
from batchwright.rules.beginnings import HEAD, NEEDED, Beginnings, told

TEMPLATE = b"Translate the following sentence to French, and say nothing else: " * 3
STARTS = st.sampled_from([b"", b"x" * 50, b"x" * 64, b"x" * 300, b"x" * 1024, b"x" * 1030, TEMPLATE])
TEXTS = st.tuples(STARTS, st.binary(max_size=40).map(lambda data: data.replace(b"\0", b"\1"))).map(b"".join)


def notes_of(texts: list[bytes], prefix: int = 0) -> list[bytes]:
    found = Beginnings()
    for number in range(prefix):
        found.note(number, b"of another prefix")
    return [found.note(prefix, text).ljust(HEAD, b"\0") for text in texts]


@given(st.lists(TEXTS), st.integers(0, 2))
def test_notes_sort_as_their_texts_do(texts: list[bytes], prefix: int) -> None:
    noted = sorted(zip(notes_of(texts, prefix), texts, strict=True))
    assert [text for _, text in noted] == sorted(texts)


@given(st.lists(TEXTS))
def test_texts_of_one_note_are_equal_as_far_as_it_tells(texts: list[bytes]) -> None:
    first: dict[bytes, bytes] = {}
    for note, text in zip(notes_of(texts), texts, strict=True):
        known = first.setdefault(note, text)
        assert len(note) == HEAD
        assert known[: told(note)] == text[: told(note)]


@given(st.lists(TEXTS))
def test_a_note_that_ends_in_zero_tells_the_whole_text(texts: list[bytes]) -> None:
    whole: dict[bytes, bytes] = {}
    for note, text in zip(notes_of(texts), texts, strict=True):
        if note.endswith(b"\0"):
            assert whole.setdefault(note, text) == text


@given(st.lists(TEXTS))
def test_a_note_depends_on_so_much_of_its_text_only(texts: list[bytes]) -> None:
    assert notes_of(texts) == notes_of([text[:NEEDED] for text in texts])


def test_prompts_of_one_template_are_told_apart_by_their_notes() -> None:
    texts = [TEMPLATE + str(number).encode() for number in range(1000)]
    assert len(set(notes_of(texts))) == 1000


def test_of_more_prefixes_than_are_remembered_notes_are_the_heads_of_their_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beginnings, "_KNOWN", 1)
    texts = [TEMPLATE + end for end in (b"b", b"a")]
    one, other = notes_of(texts, prefix=1)
    assert one == other
    assert TEMPLATE.startswith(one[2:])
    assert told(one) == HEAD - 2
