"""How an input that is too large for one batch is divided."""

import gzip
import io
import random

import pytest

from batchwright.rules.input.oversized_input import (
    DuplicateCustomId,
    FoundBatch,
    InputPart,
    PartFile,
    PartLimits,
    divide,
    group_id,
    part_metadata,
    part_number,
    whole_input_ids,
)
from batchwright.storage.spill.spilled_bytes import SpillSpace
from tests.fakes.small_memory import small_memory

WIDE = PartLimits(lines=1_000, file_bytes=1_000_000)


def lines(count: int) -> bytes:
    return b"".join(b'{"custom_id":"%d"}\n' % number for number in range(count))


def contents(content: bytes, limits: PartLimits) -> list[bytes]:
    file = io.BytesIO(content)
    return [PartFile(file, part).read() for part in divide(file, limits)]


def test_an_input_within_the_limits_is_one_part_with_all_its_bytes() -> None:
    content = b"\xef\xbb\xbf" + lines(2) + b"\n\n"
    assert contents(content, PartLimits(2, len(content))) == [content]
    assert contents(b"", WIDE) == [b""]


@pytest.mark.parametrize("last", [b"", b'{"custom_id":"9"}', b"\n \r\n"])
def test_no_part_has_more_lines_or_bytes_than_a_batch_may_have(last: bytes) -> None:
    content = lines(9).replace(b'"3"}\n', b'"3"}\n\n\n') + last
    by_lines = contents(content, PartLimits(4, 1_000))
    assert [part.count(b"custom_id") for part in by_lines] == [4, 4, 1 + (b"9" in last)]
    size = len(b'{"custom_id":"1"}\n')
    by_bytes = contents(content, PartLimits(1_000, 2 * size))
    assert all(len(part) <= 2 * size for part in by_bytes)
    assert [line for part in by_bytes for line in part.split()] == content.split()


def test_a_last_line_without_a_newline_counts_its_own_bytes() -> None:
    content = lines(2).rstrip(b"\n")
    assert len(contents(content, PartLimits(9, len(content)))) == 1
    assert len(contents(content + b"\n", PartLimits(9, len(content)))) == 2


def test_a_compressed_input_is_not_divided() -> None:
    packed = gzip.compress(random.Random(1).randbytes(100_000))
    assert contents(packed, PartLimits(2, 1_000)) == [packed]


def test_a_line_that_is_too_large_is_a_part_of_its_own() -> None:
    large = b'{"custom_id":"large"}\n'
    assert contents(lines(1) + large + lines(1)[:-1].replace(b"0", b"1"), PartLimits(9, 18)) == [
        lines(1), large, b'{"custom_id":"1"}',
    ]  # fmt: skip


def test_a_custom_id_that_occurs_in_two_parts_is_an_error() -> None:
    content = lines(3) + b"not JSON\n" + lines(1)
    assert len(contents(content, WIDE)) == 1  # the API reports it
    with pytest.raises(DuplicateCustomId, match="Line 5 has"):
        contents(content, PartLimits(2, 1_000))


def test_a_repeated_custom_id_is_named_if_the_ids_are_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    files = small_memory(monkeypatch)
    space = SpillSpace(None, "A test")
    content = lines(350) + lines(1)
    with pytest.raises(DuplicateCustomId, match="Line 351 has"):
        divide(io.BytesIO(content), PartLimits(100, 1_000_000), space.new_bytes)
    assert files
    unique = lines(350)
    assert len(divide(io.BytesIO(unique), PartLimits(100, 1_000_000), space.new_bytes)) == 4
    space.close()


def test_retries_of_failed_lines_run_no_whole_input() -> None:
    batches = [
        FoundBatch("resumed retry", "failed lines", is_retry=False),
        FoundBatch("retry", "failed lines", is_retry=True),
        FoundBatch("resumed", "all lines", is_retry=False),
        FoundBatch("first", "all lines", is_retry=False),
    ]
    assert whole_input_ids(batches) == ["resumed", "first"]


def test_a_part_can_be_read_as_a_file() -> None:
    file = io.BytesIO(b"0123456789")
    part = PartFile(file, InputPart(2, 7, 1))
    assert (part.read(2), part.read(), part.read(1)) == (b"23", b"456", b"")
    assert (part.seek(0, io.SEEK_END), part.seek(1), part.read(2), part.tell()) == (5, 1, b"34", 3)
    part.close()
    assert not file.closed


def test_groups_of_other_contents_options_or_keys_have_other_ids() -> None:
    ids = [
        group_id(io.BytesIO(content), creation, key)
        for content in (b"a", b"b")
        for creation in (["24h", {"a": "1"}], ["24h", None])
        for key in ("", "k")
    ]
    assert len(set(ids)) == 8
    assert ids[0] == group_id(io.BytesIO(b"a"), ["24h", {"a": "1"}], "")


def test_the_metadata_of_a_part_has_its_number() -> None:
    metadata = part_metadata({"team": "red"}, "group_1", 2, 3)
    assert metadata["team"] == "red"
    assert part_number(metadata) == (2, 3)


def test_the_parts_of_any_input_are_its_lines() -> None:
    chosen = random.Random(1)
    for _ in range(200):
        sizes = [chosen.randrange(0, 30) for _ in range(chosen.randrange(20))]
        content = b"\n".join(b"x" * size for size in sizes)
        limits = PartLimits(chosen.randrange(1, 6), chosen.randrange(1, 60))
        parts = contents(content, limits)
        assert [line for part in parts for line in part.split()] == content.split()
        assert all(len(part.split()) <= limits.lines for part in parts)
        assert all(len(part) <= limits.file_bytes or len(part.split()) == 1 for part in parts)
