"""Sort keys of prompts have the same order as the prompts.

Most of them differ, so the prompts themselves need not be read.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules.planning import prompt_sort_keys
from batchwright.rules.planning.prompt_sort_keys import (
    NEEDED_TEXT_BYTES,
    SORT_KEY_BYTES,
    PromptSortKeys,
    covered_bytes,
)

TEMPLATE = b"Translate the following sentence to French, and say nothing else: " * 3
STARTS = st.sampled_from([b"", b"x" * 50, b"x" * 64, b"x" * 300, b"x" * 1024, b"x" * 1030, TEMPLATE])
TEXTS = st.tuples(STARTS, st.binary(max_size=40).map(lambda data: data.replace(b"\0", b"\1"))).map(b"".join)


def notes_of(texts: list[bytes], prefix: int = 0) -> list[bytes]:
    found = PromptSortKeys()
    for number in range(prefix):
        found.key(number, b"of another prefix")
    return [found.key(prefix, text).ljust(SORT_KEY_BYTES, b"\0") for text in texts]


@given(st.lists(TEXTS), st.integers(0, 2))
def test_sort_keys_order_like_their_texts(texts: list[bytes], prefix: int) -> None:
    noted = sorted(zip(notes_of(texts, prefix), texts, strict=True))
    assert [text for _, text in noted] == sorted(texts)


@given(st.lists(TEXTS))
def test_texts_with_one_sort_key_have_an_equal_prefix(texts: list[bytes]) -> None:
    first: dict[bytes, bytes] = {}
    for note, text in zip(notes_of(texts), texts, strict=True):
        known = first.setdefault(note, text)
        assert len(note) == SORT_KEY_BYTES
        assert known[: covered_bytes(note)] == text[: covered_bytes(note)]


@given(st.lists(TEXTS))
def test_a_sort_key_that_ends_in_zero_holds_the_whole_text(texts: list[bytes]) -> None:
    whole: dict[bytes, bytes] = {}
    for note, text in zip(notes_of(texts), texts, strict=True):
        if note.endswith(b"\0"):
            assert whole.setdefault(note, text) == text


@given(st.lists(TEXTS))
def test_a_sort_key_depends_only_on_the_start_of_its_text(texts: list[bytes]) -> None:
    assert notes_of(texts) == notes_of([text[:NEEDED_TEXT_BYTES] for text in texts])


def test_prompts_of_one_template_have_different_sort_keys() -> None:
    texts = [TEMPLATE + str(number).encode() for number in range(1000)]
    assert len(set(notes_of(texts))) == 1000


def test_with_too_many_prefixes_sort_keys_are_the_starts_of_the_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_sort_keys, "_MAX_PREFIXES", 1)
    texts = [TEMPLATE + end for end in (b"b", b"a")]
    one, other = notes_of(texts, prefix=1)
    assert one == other
    assert TEMPLATE.startswith(one[2:])
    assert covered_bytes(one) == SORT_KEY_BYTES - 2
