"""The input on local disk: lines are read again wherever they are, or it is said what is missing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.ingest.spool import Spool
from batchwright.storage.base import StorageUnavailable


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool(tmp_path) as found:
        found.write(b"one\ntwo\nthree")
        yield found


def test_a_line_comes_with_its_newline(spool: Spool) -> None:
    assert spool.read_line(4, 4) == b"two\n"


def test_the_last_line_comes_with_a_newline_that_the_file_lacks(spool: Spool) -> None:
    assert spool.read_line(8, 6) == b"three\n"


def test_lines_come_in_the_order_they_are_asked_for(spool: Spool) -> None:
    assert spool.read_lines([(8, 6), (0, 4), (4, 4)]) == b"three\none\ntwo\n"


def test_a_line_of_a_file_that_was_cut_off_is_told_by_its_place(spool: Spool) -> None:
    with pytest.raises(StorageUnavailable, match="2 bytes are missing at byte 8"):
        spool.read_line(8, 7)


def test_lines_of_a_file_that_was_cut_off_are_told_by_their_place(spool: Spool) -> None:
    with pytest.raises(StorageUnavailable, match="3 bytes are missing at byte 4"):
        spool.read_lines([(4, 4), (8, 8)])
