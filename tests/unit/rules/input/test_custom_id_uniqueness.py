"""Repeated custom_ids of an input are found, also if there are more of them than the table in memory can
hold.
"""

import pytest

from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.growing_bytes import GrowingBytes
from batchwright.rules.input import custom_id_uniqueness
from batchwright.rules.input.custom_id_uniqueness import LineIds
from batchwright.rules.input.input_validator import validate
from batchwright.rules.input.line_rules import InputLimits
from batchwright.rules.input.line_writer import request_line


@pytest.fixture(autouse=True)
def _a_table_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_id_uniqueness, "_MAX_IN_TABLE", 3)


def test_a_repetition_of_an_id_in_the_table_is_found_at_once() -> None:
    ids = LineIds(GrowingBytes)
    assert [ids.add(b"%d" % number, number) for number in range(6)] == [True] * 6
    assert not ids.add(b"1", 6)
    assert list(ids.repeated()) == []


def test_repetitions_of_other_ids_are_found_at_the_end() -> None:
    ids = LineIds(GrowingBytes)
    shown = [b"a", b"b", b"c", b"d", b"e", b"d", b"f", b"d", b"e"]
    assert all(ids.add(custom_id, number) for number, custom_id in enumerate(shown))
    assert sorted(ids.repeated()) == [5, 7, 8]


def test_a_repetition_beyond_the_table_is_an_error_of_its_line() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    names = ["a", "b", "c", "d", "e", "d"]
    lines = [request_line(name, Endpoint.CHAT_COMPLETIONS, body) for name in names]
    report = validate(lines, Endpoint.CHAT_COMPLETIONS, InputLimits(), Profile.RELAXED)
    assert [(error.code, error.line) for error in report.errors] == [("duplicate_custom_id", 6)]
    assert report.error_count == 1
