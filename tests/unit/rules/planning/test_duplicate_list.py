"""The stored list of duplicates."""

import pytest

from batchwright.rules.planning.duplicate_list import (
    Duplicate,
    DuplicatesDamaged,
    decode_duplicates,
    encode_duplicates,
)


def test_a_list_of_duplicates_is_read_as_it_was_written() -> None:
    found = [Duplicate(2**40, 0, 'a"\n'), Duplicate(2**40 + 1, 5, "é")]
    assert list(decode_duplicates(encode_duplicates(found).splitlines())) == found
    with pytest.raises(DuplicatesDamaged):
        list(decode_duplicates([b"[1]"]))
