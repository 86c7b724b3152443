"""The input on local disk: lines can be read again in any order, and a truncated file is reported."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchwright.activities.ingestion.input_spool import InputSpool
from batchwright.storage.base import StorageUnavailable


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[InputSpool]:
    with InputSpool(tmp_path) as found:
        found.write(b"one\ntwo\nthree")
        yield found


def test_a_line_is_returned_with_its_newline(spool: InputSpool) -> None:
    assert spool.read_line(4, 4) == b"two\n"


def test_the_last_line_gets_the_newline_that_the_file_lacks(spool: InputSpool) -> None:
    assert spool.read_line(8, 6) == b"three\n"


def test_lines_are_returned_in_the_requested_order(spool: InputSpool) -> None:
    assert spool.read_lines([(8, 6), (0, 4), (4, 4)]) == b"three\none\ntwo\n"


def test_a_truncated_file_is_reported_with_the_position_of_the_line(spool: InputSpool) -> None:
    with pytest.raises(StorageUnavailable, match="2 bytes are missing at byte 8"):
        spool.read_line(8, 7)


def test_a_truncated_file_is_reported_with_the_positions_of_the_lines(spool: InputSpool) -> None:
    with pytest.raises(StorageUnavailable, match="3 bytes are missing at byte 4"):
        spool.read_lines([(4, 4), (8, 8)])
