"""JSON that is formatted for people: indentation, escapes, and how long texts are cut."""

import json

import pytest

from batchwright.rules.json_indentation import indented_json

CUT = "\n... Download the file to read the rest."


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "-1",
        '"a"',
        "[]",
        "{}",
        "[[], {}, [[]]]",
        '{"a": {"b": [1, 2.5, true, null]}, "c": [], "d": [{"e": "f"}, "g"]}',
        r'["\"", "\\", "\\\"", "a\nb", "\u00e9", "\ud83d\ude00", "[1,{2", ":"]',
    ],
)
def test_json_is_shown_as_the_standard_library_indents_it(text: str) -> None:
    indented = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    for source in (text, text.replace(" ", ""), text.replace(" ", " \t")):
        assert indented_json(source.encode()) == indented


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[" + "1," * 50_000 + "1]", "[\n" + "  1,\n" * 4000),
        ('["' + "a" * 100_000 + '"]', '[\n  "' + "a" * 50_000),
        ('["' + "\\\\" * 50_000 + '"]', '[\n  "' + "\\" * 50_000),
        (" " * 100_000 + "1", ""),
    ],
)
def test_long_json_is_cut(text: str, shown: str) -> None:
    assert indented_json(text.encode()) == shown[:20_000] + CUT
