"""`batchwright render`: requests from a template and a table, and what it says about wrong input."""

import json
import resource
import sys
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Literal
from uuid import UUID

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from batchwright.starter.__main__ import app
from batchwright.starter.tables import parquet, templates
from batchwright.starter.tables.reading import open_table
from tests.unit.starter.parquet_files import (
    Rows,
    write_fixed_lists,
    write_logical_types,
    write_nested,
    write_parquet,
    write_repeated,
    write_repeated_as,
    write_times,
)

ROWS: Rows = [{"id": "p", "city": "Paris", "n": "1"}, {"id": "r", "city": 'The "Rome"', "n": "007"}]
TEMPLATE = {
    "model": "llama",
    "max_tokens": "{{ n | int }}",
    "messages": [{"role": "user", "content": "What is {{ city }} known for?\n"}],
    "user": "{{ n }}",
}


def render(folder: Path, template: object, table: str, *options: str) -> Result:
    (folder / "prompt.json").write_text(template if isinstance(template, str) else json.dumps(template))
    return CliRunner().invoke(app, ["render", str(folder / "prompt.json"), str(folder / table), *options])


@pytest.fixture(params=["cities.csv", "cities.jsonl", "cities.parquet"])
def cities(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Name of a table with the same rows, in each format."""
    path = tmp_path / request.param
    match path.suffix:
        case ".csv":
            path.write_text('\ufeffid,city,n\r\np,Paris,1\r\n\r\nr,"The ""Rome""",007\r\n')
        case ".jsonl":
            path.write_text("\n\n".join(json.dumps(row) for row in ROWS))
        case _:
            write_parquet(path, ROWS)
    return path.name


def test_each_row_becomes_a_request(tmp_path: Path, cities: str) -> None:
    rendered = render(tmp_path, TEMPLATE, cities, "--id", "id", "--endpoint", "/v1/completions")
    first, second = map(json.loads, rendered.stdout.splitlines())
    assert (first["custom_id"], first["method"], first["url"]) == ("p", "POST", "/v1/completions")
    assert second["custom_id"] == "r"
    assert second["body"] == {
        "model": "llama",
        "max_tokens": 7,
        "messages": [{"role": "user", "content": 'What is The "Rome" known for?\n'}],
        "user": "007",
    }


def test_a_string_that_is_one_expression_keeps_the_type_of_its_value(tmp_path: Path) -> None:
    row = {"a": [1, {"b": None}], "text": "x", "row": "mine"}
    (tmp_path / "table.jsonl").write_text(json.dumps(row))
    template = {
        "list": " {{- a -}} ",
        "null": "{{ a[1].b }}",
        "name": "{{ row['row'] }}",
        "both": "{{ a[0] }}{{ text }}",
    }
    body = json.loads(render(tmp_path, template, "table.jsonl").stdout)["body"]
    assert body == {"list": [1, {"b": None}], "null": None, "name": "mine", "both": "1x"}


def test_rows_have_numbers_as_custom_ids(tmp_path: Path, cities: str) -> None:
    output = tmp_path / "requests.jsonl"
    rendered = render(tmp_path, TEMPLATE, cities, "-o", str(output))
    assert [json.loads(line)["custom_id"] for line in output.read_text().splitlines()] == ["row-1", "row-2"]
    assert (rendered.exit_code, rendered.stdout) == (0, "")
    assert "Wrote 2 requests" in rendered.stderr


def test_columns_are_in_the_order_of_repetition(tmp_path: Path) -> None:
    lines = (f"review {n},shop {n % 2},product {n % 5}" for n in range(20))
    (tmp_path / "table.csv").write_text("\n".join(["review,shop,product", *lines]))
    template = {"prompt": "{% for name in columns %}{{ name }}: {{ row[name] }}\n{% endfor %}"}
    first = json.loads(render(tmp_path, template, "table.csv").stdout.splitlines()[0])
    assert first["body"]["prompt"] == "shop: shop 0\nproduct: product 0\nreview: review 0\n"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"a": ["{{ country }}"]}, "row 1: a[0]: there is no column 'country'; the columns are id, city, n."),
        ({"a": {"b": "In {{ country }}"}}, "row 1: a.b: there is no column 'country'"),
        ({"a": "{{ city.size.x }}"}, "row 1: a: 'str object' has no attribute 'size'."),
        ({"a": "{{ 1 / (n | int - 7) }}"}, "row 2: a: division by zero"),
        ({"a": "{{ city + 1 }}"}, "row 1: a: can only concatenate str"),
        ({"a": "{% for x in range(10**9) %}x{% endfor %}"}, "row 1: a: Range too big."),
        ({"a": "{{ city * 10**9 }}"}, "row 1: a: the result has more than 10,485,760 characters."),
        ({"a": "{{ 10**(10**10) }}"}, "row 1: a: the result has more than 10,485,760 characters."),
        ({"a": "{{ city.__class__.__mro__ }}"}, "row 1: a: access to attribute '__class__'"),
        ({"a": "{% include '/etc/passwd' %}"}, "row 1: a: no loader"),
        ({"a": "x{{ none }}"}, "row 1: a: a value is null; write, for example, `{{ name or '' }}`."),
        ({"a": "{{ range }}"}, "row 1: the request is not JSON"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_rendered_is_named(
    tmp_path: Path, template: object, message: str, cities: str
) -> None:
    output = tmp_path / "requests.jsonl"
    output.write_text("of an earlier run")
    rendered = render(tmp_path, template, cities, "-o", str(output))
    assert f"{tmp_path / cities}, {message}" in rendered.stderr
    assert (rendered.exit_code, output.read_text()) == (1, "of an earlier run")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("body", ["", "{% set ns.x = y %}", "text"])
def test_an_endless_template_is_stopped_at_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(templates, "MAX_ROW_SECONDS", 0.05)
    loops = "{% set ns = namespace() %}" + "".join(f"{{% for {name} in range(99999) %}}" for name in "xyz")
    (tmp_path / "table.csv").write_text("a\nfine\n")
    rendered = render(tmp_path, {"p": loops + body + "{% endfor %}" * 3}, "table.csv")
    assert rendered.exit_code == 1
    assert "row 1: " in rendered.stderr
    assert "has not ended after 0.05 s" in rendered.stderr or "more than 10,485,760" in rendered.stderr


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ('{"a": ', "is not a template: it is not valid JSON"),
        ('{"a": 1, "a": 2}', "it has the key 'a' twice"),
        ("[1]", "it must be a JSON object"),
        ({"a": "{% if %}"}, "prompt.json: a: Expected an expression"),
        ({"a": "{{ city | nope }}"}, "prompt.json: a: No filter named 'nope'"),
        ({"a": "{{ 1 / 0 }} {{ city }}"}, "division by zero"),
    ],
)
def test_a_wrong_template_is_refused(tmp_path: Path, template: object, message: str) -> None:
    (tmp_path / "cities.csv").write_text("city\nParis\n")
    rendered = render(tmp_path, template, "cities.csv")
    assert (rendered.exit_code in (1, 3), rendered.stdout) == (True, "")
    assert message in rendered.stderr


@pytest.mark.parametrize(
    ("name", "content", "message", "code"),
    [
        ("t.csv", b"a,b\n1,2\n3\n", "row 2: it has 1 fields, but the header has 2 (line 3).", 1),
        ("t.csv", b'a,b\n1,"2\n', "row 1: unexpected end of data (line 2).", 1),
        ("t.csv", b"a,a\n1,2\n", "has two columns with the name 'a'", 3),
        ("t.csv", b"", "has no header", 3),
        ("t.csv", b"a\n", "has no rows", 3),
        ("t.csv", b"a\n\xff\n", "is not UTF-8 text", 3),
        ("t.jsonl", b'{"a": 1}\n\n{"a": \n', "row 2: it is not valid JSON", 1),
        ("t.jsonl", b"[1]\n", "row 1: it is not a JSON object.", 1),
        ("t.jsonl", b'{"a": 1%s}\n' % (b"0" * 5_000), "row 1: a value cannot be read: Integer value out", 1),
        ("t.parquet", b"PAR1", "is not a readable Parquet file", 3),
        ("t.xlsx", b"PK", "its name must end with .csv, .jsonl or .parquet.", 3),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, name: str, content: bytes, message: str, code: int) -> None:
    (tmp_path / name).write_bytes(content)
    rendered = render(tmp_path, {"a": "{{ a }}"}, name)
    assert message in rendered.stderr
    assert rendered.exit_code == code


def test_a_missing_table_and_a_missing_folder_are_reported(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    missing = render(tmp_path, {"a": 1}, "nothing.csv")
    assert (missing.exit_code, "nothing.csv cannot be read: No such file" in missing.stderr) == (3, True)
    elsewhere = render(tmp_path, {"a": 1}, "t.csv", "-o", str(tmp_path / "no" / "requests.jsonl"))
    assert (elsewhere.exit_code, "cannot be written" in elsewhere.stderr) == (3, True)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("id\np\nr\np\n", "row 3: column 'id' has 'p', as row 1 has; each row needs its own."),
        ("city\nParis\n", "row 1: there is no column 'id', which --id names; the columns are city."),
        ('id,x\n"",1\n', "row 1: column 'id' has '', but a custom id is a text or an integer."),
    ],
)
def test_custom_ids_are_checked(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(rows)
    rendered = render(tmp_path, {"a": 1}, "t.csv", "--id", "id")
    assert (rendered.exit_code, message in rendered.stderr) == (1, True)


def test_uuids_of_parquet_are_custom_ids(tmp_path: Path) -> None:
    ids = [UUID(int=number) for number in range(1, 4)]
    write_logical_types(tmp_path / "t.parquet", ids)
    rendered = render(tmp_path, {"a": "{{ id }}: {{ json }}"}, "t.parquet", "--id", "id")
    assert rendered.exit_code == 0, rendered.stderr
    lines = [json.loads(line) for line in rendered.stdout.splitlines()]
    assert [line["custom_id"] for line in lines] == [str(id) for id in ids]
    assert lines[0]["body"] == {"a": f'{ids[0]}: {{"at": "{ids[0]}"}}'}


def test_parquet_is_read_in_pieces(tmp_path: Path) -> None:
    rows: Rows = [{"n": n, "text": (None, "x", "y")[n % 3]} for n in range(3_000)]
    write_parquet(tmp_path / "t.parquet", rows, rows_in_group=700)
    rendered = render(tmp_path, {"n": "{{ n }}", "text": "{{ text }}"}, "t.parquet")
    bodies = [json.loads(line)["body"] for line in rendered.stdout.splitlines()]
    assert [body["n"] for body in bodies] == list(range(3_000))
    assert [body["text"] for body in bodies[:3]] == [None, "x", "y"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory")
@pytest.mark.parametrize(
    "template",
    [
        "{% set n = namespace(a='x' * 99) %}{% for i in range(40) %}{% set n.a = n.a + n.a %}{% endfor %}",
        "{% set n = namespace(a='x' * 99) %}{% for i in range(40) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
        "{{ 'a' | center(9000000000) }}",
        "{{ '%09000000000d' | format(1) }}",
    ],
    ids=["plus", "tilde", "center", "format"],
)
def test_a_template_that_needs_too_much_memory_is_stopped_at_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr(templates, "MAX_ROW_MEMORY", 64 * 1024 * 1024)
    before = resource.getrlimit(resource.RLIMIT_AS)
    (tmp_path / "table.csv").write_text("a\nfine\n")
    rendered = render(tmp_path, {"p": template + "{{ a }}"}, "table.csv")
    assert rendered.exit_code == 1
    assert "row 1: p: the result needs too much memory" in rendered.stderr
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize("output", ["prompt.json", "table.csv", "link.csv"])
def test_an_output_that_is_one_of_the_inputs_is_refused(tmp_path: Path, output: str) -> None:
    (tmp_path / "table.csv").write_text("a\n1\n")
    (tmp_path / "link.csv").symlink_to("table.csv")
    rendered = render(tmp_path, {"p": "{{ a }}"}, "table.csv", "-o", str(tmp_path / output))
    assert (rendered.exit_code, "which would be lost" in rendered.stderr) == (3, True)
    assert (tmp_path / "table.csv").read_text() == "a\n1\n"


def test_an_output_that_is_a_link_replaces_the_file_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a\n1\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.jsonl").symlink_to("elsewhere/real.jsonl")
    assert render(tmp_path, {"p": "{{ a }}"}, "table.csv", "-o", str(tmp_path / "out.jsonl")).exit_code == 0
    assert (tmp_path / "out.jsonl").is_symlink()
    assert json.loads((tmp_path / "elsewhere" / "real.jsonl").read_text())["body"] == {"p": "1"}
    assert [each.name for each in (tmp_path / "elsewhere").iterdir()] == ["real.jsonl"]


def test_a_small_parquet_file_that_repeats_a_long_text_needs_little_memory(tmp_path: Path) -> None:
    write_repeated(tmp_path / "table.parquet", "x" * 1_000_000, rows=1_000)
    tracemalloc.start()
    try:
        rows = list(open_table(tmp_path / "table.parquet").rows())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(rows), len(str(rows[-1]["a"])), rows[-1]["b"]) == (1_000, 1_000_000, None)
    assert peak < 100_000_000


@pytest.mark.parametrize("kind", ["large_string", "binary", "large_binary"])
def test_a_repeated_value_of_any_type_of_text_is_in_memory_once(tmp_path: Path, kind: str) -> None:
    write_repeated_as(kind, tmp_path / "table.parquet", "x" * 100_000, rows=100)
    tracemalloc.start()
    try:
        rows = list(open_table(tmp_path / "table.parquet").rows())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == [{"a": "x" * 100_000 if kind == "large_string" else b"x" * 100_000}] * 100
    assert peak < 5_000_000


def test_nested_texts_of_parquet_are_expanded_row_by_row(tmp_path: Path) -> None:
    write_nested(tmp_path / "table.parquet", "x" * 100_000, times=10, rows=500)
    pool_before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        pools, numbers = list[int](), list[object]()
        for row in open_table(tmp_path / "table.parquet").rows():
            numbers.append(row["n"])
            pools.append(pa.total_allocated_bytes() - pool_before)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert numbers == list(range(500))
    assert max(pools) + peak < 20_000_000  # all rows together have 500,000,000


def test_nested_values_of_parquet_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows: Rows = [
        {"l": ["a", None, "b"], "s": {"x": "y", "m": [{"z": b"1"}]}, "d": Decimal("1.50")},
        {"l": None, "s": {"x": None, "m": []}, "d": None},
        {"l": [], "s": None, "d": Decimal("2.25")},
    ]
    write_parquet(tmp_path / "table.parquet", rows)
    assert list(open_table(tmp_path / "table.parquet").rows()) == rows


def test_nested_texts_of_which_only_some_repeat_are_read(tmp_path: Path) -> None:
    repeated: Rows = [{"n": n, "l": ["x" * 1_000, "y"]} for n in range(3_000)]
    distinct: Rows = [{"n": n, "l": [f"{n:01000}", f"{n}"]} for n in range(3_000, 6_000)]
    rows = [*repeated, *distinct]
    write_parquet(tmp_path / "table.parquet", rows, rows_in_group=10_000)
    assert list(open_table(tmp_path / "table.parquet").rows()) == rows


def test_lists_of_a_fixed_size_are_read_from_parquet(tmp_path: Path) -> None:
    write_fixed_lists(tmp_path / "table.parquet", [["a", "b"], None, ["c", None]])
    rows = list(open_table(tmp_path / "table.parquet").rows())
    assert rows == [{"l": ["a", "b"]}, {"l": None}, {"l": ["c", None]}]


@pytest.mark.parametrize(("unit", "value"), [("ns", 1), ("s", 400_000_000_000)])
def test_a_time_of_parquet_that_python_cannot_represent_is_named(
    tmp_path: Path, unit: Literal["s", "ns"], value: int
) -> None:
    write_times(tmp_path / "table.parquet", unit, [0, value])
    rendered = render(tmp_path, {"n": "{{ at }}"}, "table.parquet")
    assert rendered.exit_code == 3
    assert "table.parquet: column 'at' (timestamp[" in rendered.stderr
    assert "Write the column as text, or times in microseconds." in rendered.stderr


def test_json_of_parquet_counts_for_the_size_of_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MAX_ROW_BYTES", 50)
    write_logical_types(tmp_path / "t.parquet", [UUID(int=1)])
    rendered = render(tmp_path, {"a": 1}, "t.parquet")
    assert (rendered.exit_code, "row 1: it has more than 50 bytes" in rendered.stderr) == (1, True)


def test_a_row_of_parquet_that_is_too_large_once_it_is_expanded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MAX_ROW_BYTES", 1_000)
    write_nested(tmp_path / "fits.parquet", "x" * 100, times=9, rows=3)
    assert render(tmp_path, {"n": "{{ n }}"}, "fits.parquet").exit_code == 0
    write_nested(tmp_path / "table.parquet", "x" * 100, times=10, rows=3)
    rendered = render(tmp_path, {"n": "{{ n }}"}, "table.parquet")
    assert rendered.exit_code == 1
    assert "table.parquet, row 1: it has more than 1,000 bytes once it is expanded." in rendered.stderr
