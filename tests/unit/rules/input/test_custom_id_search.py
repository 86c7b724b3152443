"""The index of the custom ids of a batch: it finds each of them, and almost no other custom id."""

import pytest

from batchwright.rules.growing_bytes import GrowingBytes
from batchwright.rules.input import custom_id_search
from batchwright.rules.input.custom_id_search import CustomIdIndex, CustomIdPart


def parts_of(*custom_ids: str) -> list[CustomIdPart]:
    index = CustomIdIndex(GrowingBytes)
    index.add_all([*custom_ids])
    return list(index.parts())


@pytest.mark.parametrize("count", [1, 256, 257, 10_000])
def test_a_part_contains_each_of_its_custom_ids_and_no_other(count: int) -> None:
    (part,) = parts_of(*(f"request-{number}" for number in range(count)))
    assert all(part.contains(f"request-{number}") for number in range(count))
    assert not any(part.contains(f"request-{number}") for number in range(count, count + 1_000))


@pytest.mark.parametrize("custom_id", ["\0", "ü \U0001f600", "\ud800", "x" * 100_000])
def test_any_text_is_found(custom_id: str) -> None:
    (part,) = parts_of("a", custom_id)
    assert part.contains(custom_id)
    assert not part.contains(custom_id + "\0")


def test_an_index_without_lines_has_no_parts() -> None:
    assert parts_of() == []


def test_parts_have_a_limited_number_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_id_search, "_PART_LINES", 3)
    parts = parts_of(*"abcdefgh")
    assert len(parts) == 3
    found = [[custom_id for custom_id in "abcdefgh" if part.contains(custom_id)] for part in parts]
    assert found == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]


def test_a_large_part_takes_about_seven_bytes_for_a_line_and_a_bucket_less_than_two_kilobytes() -> None:
    (part,) = parts_of(*(f"request-{number}" for number in range(50_000)))
    assert part.bucket_bytes < 2_000
    assert len(part.buckets) < 8 * 50_000


def test_the_buckets_of_the_same_custom_ids_are_different_in_each_index() -> None:
    first, second = (parts_of(*map(str, range(1_000)))[0] for _ in range(2))
    assert first.salt != second.salt
    assert set(first.buckets[at : at + 6] for at in range(0, 600, 6)).isdisjoint(
        second.buckets[at : at + 6] for at in range(0, len(second.buckets), 6)
    )
