"""`batchwright results` recognizes lines that it receives a second time, with their ids in
memory or on disk.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules.growing_bytes import GrowingBytes
from batchwright.rules.results import seen_lines
from batchwright.rules.results.seen_lines import SeenLines
from batchwright.storage.spill.spilled_bytes import SpillSpace
from tests.fakes.small_memory import rows_on_disk, small_memory


@given(received=st.lists(st.sets(st.integers(0, 400).map(str)), max_size=4), on_disk=st.booleans())
def test_lines_of_earlier_responses_are_seen_and_no_others(received: list[set[str]], on_disk: bool) -> None:
    with pytest.MonkeyPatch.context() as environment:
        rows_on_disk(environment)
        environment.setattr(seen_lines, "_BLOCK_ROWS", 3)
        space = SpillSpace(None, "A test")
        seen, expected = SeenLines(space.new_bytes if on_disk else GrowingBytes), set[str]()
        for ids in received:
            seen.sort()
            assert {id for id in map(str, range(401)) if seen.is_seen(id.encode())} == expected
            seen.add(id.encode() for id in ids)
            expected |= ids
        space.close()


def test_ids_beyond_the_memory_are_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = small_memory(monkeypatch)
    space = SpillSpace(tmp_path, "A test")
    seen = SeenLines(space.new_bytes)
    seen.add(b"%d" % n for n in range(1_000))
    seen.sort()
    assert len(files) == 2
    assert files[0].file.closed  # the ids before they were sorted
    assert all(seen.is_seen(b"%d" % n) for n in range(1_000))
    assert not seen.is_seen(b"1000")
    space.close()
