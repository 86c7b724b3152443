"""`batchwright collect`: the results of batches as columns of the table of their requests."""

import csv
import io
import json
from collections.abc import Generator
from pathlib import Path
from uuid import UUID

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.results.output_lines import error_line, result_line
from batchwright.starter.tables import parquet
from batchwright.starter.tables.reading import open_table
from batchwright.starter.tables.results import answer_text
from batchwright.starter.tables.writing import table_writer
from tests.unit.starter.cli import Cli, served
from tests.unit.starter.parquet_files import (
    Rows,
    arrow_memory,
    read_parquet,
    row_groups,
    type_of,
    write_logical_types,
    write_map,
    write_parquet,
    write_repeated,
)

ADDED = ["answer", "status_code", "error_code", "error_message", "input_tokens", "output_tokens"]


def chat(custom_id: str, text: str) -> bytes:
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    body = {"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage}
    return line(custom_id, 200, body)


def line(custom_id: str, status: int, body: object) -> bytes:
    sent = json.dumps(body).encode()
    return result_line("batch_req_1", custom_id, status_code=status, backend_request_id="", body=sent) + b"\n"


def read(path: Path) -> Rows:
    match path.suffix:
        case ".csv":
            return [dict(row) for row in csv.DictReader(io.StringIO(path.read_bytes().decode()))]
        case ".jsonl":
            return [json.loads(text) for text in path.read_text().splitlines()]
        case _:
            return read_parquet(path)


@pytest.fixture(scope="module")
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "cities.csv"
    path.write_text('id,city\nr,"Rome\nand more"\np,Paris\no,Oslo\nx,X\n')
    return path


def ended(cli: Cli, folder: Path, output: bytes | None, error: bytes | None) -> str:
    """Return the id of an ended batch with these files."""
    batch_id = cli.submitted(folder).order.batch_id
    cli.end(batch_id, output=output, error=error)
    return batch_id


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_rows_get_their_results_in_the_order_of_the_table(cli: Cli, table: Path, suffix: str) -> None:
    failed = line("o", 400, {"error": {"message": "Too long."}}) + error_line(
        "batch_req_2", "x", LineCode.BATCH_EXPIRED, "Late."
    )
    batch_id = ended(cli, table.parent, chat("p", "Tower") + chat("r", 'Ruins, \n"pasta"'), failed)
    output = table.with_name(f"out{suffix}")
    collected = cli.run("collect", batch_id, str(table), "-o", str(output), "--id", "id")
    rows = read(output)
    assert collected.exit_code == 1
    assert "2 rows with an answer, 2 without (1 http_400, 1 batch_expired)." in collected.stderr
    assert [row["id"] for row in rows] == ["r", "p", "o", "x"]
    assert list(rows[0]) == ["id", "city", *ADDED]
    assert (rows[0]["city"], rows[0]["answer"]) == ("Rome\nand more", 'Ruins, \n"pasta"')
    assert [str(rows[0][name] or "") for name in ADDED[1:]] == ["200", "", "", "5", "2"]
    assert [str(rows[2][name] or "") for name in ADDED] == ["", "400", "http_400", "Too long.", "", ""]
    assert [str(rows[3][name] or "") for name in ADDED] == ["", "", "batch_expired", "Late.", "", ""]


def test_results_of_a_retry_replace_failed_ones(cli: Cli, table: Path) -> None:
    good = b"".join(chat(name, f"first {name}") for name in "rpo")
    first = ended(cli, table.parent, good, line("x", 500, {}))
    second = ended(cli, table.parent, chat("x", "second x"), line("p", 500, {}))
    output = table.with_name("out.csv")
    for batches in ([first, second], [second, first]):
        collected = cli.run("collect", *batches, str(table), "-o", str(output), "--id", "id")
        assert collected.exit_code == 0, collected.stderr
        assert [row["answer"] for row in read(output)] == ["first r", "first p", "first o", "second x"]


def test_types_of_parquet_columns_stay(cli: Cli, tmp_path: Path) -> None:
    rows: Rows = [{"n": 1, "tags": ["a"]}, {"n": None, "tags": []}]
    write_parquet(tmp_path / "in.parquet", rows)
    batch_id = ended(cli, tmp_path, chat("row-1", "one"), None)
    output = tmp_path / "out.parquet"
    collected = cli.run("collect", batch_id, str(tmp_path / "in.parquet"), "-o", str(output))
    assert (collected.exit_code, "1 no_result" in collected.stderr) == (1, True)
    assert type_of(output, "tags") == type_of(tmp_path / "in.parquet", "tags")
    assert [(row["n"], row["tags"], row["error_code"]) for row in read(output)] == [
        (1, ["a"], None), (None, [], "no_result"),
    ]  # fmt: skip


@pytest.mark.parametrize("by_arrow", [True, False])
def test_uuids_and_json_of_parquet_stay_what_they_are(cli: Cli, tmp_path: Path, by_arrow: bool) -> None:
    ids = [UUID(int=number) for number in range(1, 4)]
    table, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    write_logical_types(table, ids, by_arrow=by_arrow)
    batch_id = ended(cli, tmp_path, b"".join(chat(str(id), "one") for id in ids), None)
    collected = cli.run("collect", batch_id, str(table), "--id", "id", "-o", str(output))
    assert collected.exit_code == 0, collected.stderr
    columns = ("id", "json", "list")
    assert [type_of(output, name) for name in columns] == [type_of(table, name) for name in columns]
    assert [{name: row[name] for name in columns} for row in read(output)] == read(table)


def test_nan_and_infinity_of_parquet_stay_numbers_in_csv(cli: Cli, tmp_path: Path) -> None:
    write_parquet(
        tmp_path / "in.parquet", [{"n": 1.5}, {"n": float("nan")}, {"n": float("-inf")}, {"n": None}]
    )
    batch_id = ended(cli, tmp_path, chat("row-1", "one"), None)
    cli.run("collect", batch_id, str(tmp_path / "in.parquet"), "-o", str(tmp_path / "out.csv"))
    assert [row["n"] for row in read(tmp_path / "out.csv")] == ["1.5", "nan", "-inf", ""]


def test_nan_and_infinity_of_parquet_are_strings_in_jsonl_and_in_lists_of_csv(
    cli: Cli, tmp_path: Path
) -> None:
    nan, high, low = float("nan"), float("inf"), float("-inf")
    write_parquet(tmp_path / "in.parquet", [{"n": each, "m": [each, None]} for each in (1.5, nan, high, low)])
    batch_id = ended(cli, tmp_path, chat("row-1", "one"), None)
    for suffix in (".jsonl", ".csv"):
        cli.run("collect", batch_id, str(tmp_path / "in.parquet"), "-o", str(tmp_path / f"out{suffix}"))
    names = ["NaN", "Infinity", "-Infinity"]
    assert [(row["n"], row["m"]) for row in read(tmp_path / "out.jsonl")] == [
        (each, [each, None]) for each in (1.5, *names)
    ]
    lists = ["[1.5,null]", *(f'["{name}",null]' for name in names)]
    assert [row["m"] for row in read(tmp_path / "out.csv")] == lists


def test_nan_in_maps_of_parquet_is_a_string_in_jsonl(cli: Cli, tmp_path: Path) -> None:
    write_map(tmp_path / "in.parquet", [("a", float("nan")), ("b", 1.0)])
    batch_id = ended(cli, tmp_path, chat("row-1", "one"), None)
    cli.run("collect", batch_id, str(tmp_path / "in.parquet"), "-o", str(tmp_path / "out.jsonl"))
    assert [row["m"] for row in read(tmp_path / "out.jsonl")] == [[["a", "NaN"], ["b", 1.0]]]


def test_deeply_nested_values_with_null_are_written_as_they_are(tmp_path: Path) -> None:
    deep = "[" * 700 + "null" + "]" * 700
    (tmp_path / "in.jsonl").write_text(f'{{"a":{deep}}}\n')
    table = open_table(tmp_path / "in.jsonl")
    with table_writer(tmp_path / "out.jsonl", table, []) as writer:
        for row in table.rows():
            writer.write(row)
    assert (tmp_path / "out.jsonl").read_text() == (tmp_path / "in.jsonl").read_text()


def test_rows_of_a_jsonl_table_may_have_different_columns(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n{"b": {"c": [1]}, "a": 2.5}\n')
    batch_id = ended(cli, tmp_path, chat("row-1", "one") + chat("row-2", "two"), None)
    for suffix, expected in ((".csv", ["", '{"c":[1]}']), (".parquet", [None, {"c": [1]}])):
        output = tmp_path / f"out{suffix}"
        assert cli.run("collect", batch_id, str(tmp_path / "in.jsonl"), "-o", str(output)).exit_code == 0
        assert [row["b"] for row in read(output)] == expected


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_long_texts_are_written_as_parquet_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(parquet, "_BYTES_AT_ONCE", 8_000_000)
    text, rows, path = "x" * 1_000_000, 60, tmp_path / f"in{suffix}"
    if suffix == ".parquet":
        write_repeated(path, text, rows)
    else:
        path.write_text(f'{{"a": "{text}"}}\n' * rows)
    output = tmp_path / "out.parquet"
    with arrow_memory() as peak, table_writer(output, open_table(path), []) as writer:
        for row in open_table(path).rows():
            writer.write(row)
    assert len(read_parquet(output)) == rows
    assert peak() < 20_000_000


@pytest.mark.parametrize("text", ["a" * 120, "\N{GRINNING FACE}" * 30])
def test_rows_are_converted_to_parquet_by_their_bytes_and_not_by_their_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(parquet, "_BYTES_AT_ONCE", 240)
    (tmp_path / "in.jsonl").write_text(f'{{"text":"{text}"}}\n' * 4)
    table = open_table(tmp_path / "in.jsonl")
    with table_writer(tmp_path / "out.parquet", table, []) as writer:
        for row in table.rows():
            writer.write(row)
    assert row_groups(tmp_path / "out.parquet") == 2


@pytest.mark.parametrize("value", ["18446744073709551616", '{"b": [-9223372036854775809]}'])
def test_an_integer_that_parquet_does_not_have_is_named_with_its_row_and_column(
    cli: Cli, tmp_path: Path, value: str
) -> None:
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n' * 1_200 + f'{{"a": 1, "n": {value}}}\n')
    batch_id = ended(cli, tmp_path, chat("row-1", "one"), None)
    refused = cli.run("collect", batch_id, str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.parquet"))
    assert refused.exit_code == 3
    assert "row 1,201: column 'n' has an integer that does not fit into 64 bits" in refused.stderr
    assert not (tmp_path / "out.parquet").exists()
    kept = cli.run("collect", batch_id, str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"))
    assert kept.exit_code == 1
    assert read(tmp_path / "out.jsonl")[-1]["n"] == json.loads(value)


def test_a_batch_that_runs_is_not_collected(cli: Cli, table: Path) -> None:
    batch_id = cli.submitted(table.parent).order.batch_id
    output = table.with_name("out.csv")
    early = cli.run("collect", batch_id, str(table), "-o", str(output))
    assert (early.exit_code, f"batchwright watch {batch_id}" in early.stderr) == (2, True)
    assert not output.exists()


def test_results_of_another_table_are_refused(cli: Cli, table: Path) -> None:
    batch_id = ended(cli, table.parent, chat("p", "Tower"), None)
    output = table.with_name("out.csv")
    wrong = cli.run("collect", batch_id, str(table), "-o", str(output))
    assert (wrong.exit_code, output.exists()) == (3, False)
    assert "No row of" in wrong.stderr
    assert "The results have ids such as p; is --id right?" in wrong.stderr


@pytest.mark.parametrize(
    ("header", "output", "message"),
    [
        ("id,answer", "out.csv", "row 1: column 'answer' exists, but collect adds it; rename yours."),
        ("id,a", "out.txt", "its name must end with"),
    ],
)
def test_an_output_that_is_not_possible_is_refused(
    cli: Cli, tmp_path: Path, header: str, output: str, message: str
) -> None:
    (tmp_path / "in.csv").write_text(f"{header}\np,1\n")
    batch_id = ended(cli, tmp_path, chat("p", "Tower"), None)
    refused = cli.run(
        "collect", batch_id, str(tmp_path / "in.csv"), "-o", str(tmp_path / output), "--id", "id"
    )
    assert (refused.exit_code, message in refused.stderr) == (3, True)


def test_a_batch_that_failed_says_why(cli: Cli, table: Path) -> None:
    batch_id = cli.submitted(table.parent).order.batch_id
    cli.end(batch_id, BatchStatus.FAILED)
    output = table.with_name("out.csv")
    assert cli.run("collect", batch_id, str(table), "-o", str(output)).exit_code == 1
    assert {row["error_code"] for row in read(output)} == {"no_result"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"choices": [{"text": "a completion"}]}, "a completion"),
        ({"output": [{"type": "reasoning"}, {"content": [{"type": "output_text", "text": "a"}]}]}, "a"),
        ({"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "message"}]}, "a message"),
        ({"data": [{"embedding": [0.5]}]}, '{"data": [{"embedding": [0.5]}]}'),
        ({"choices": [{"message": {"content": None}}]}, '{"choices": [{"message": {"content": null}}]}'),
        ({"choices": []}, '{"choices": []}'),
        ({"choices": [{"message": {"content": "", "tool_calls": None}}]}, ""),
        ({"choices": [{"text": ""}]}, ""),
        ({"output": [{"type": "message", "content": [{"type": "output_text", "text": ""}]}]}, ""),
        ({"content": [{"type": "thinking", "thinking": "a"}, {"type": "text", "text": ""}]}, ""),
    ],
)
def test_the_answer_is_the_text_of_any_endpoint(body: object, text: str) -> None:
    assert answer_text(json.dumps(body).encode()) == text


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"message": {"content": "", "tool_calls": [{"id": "a"}]}}]},
        {"output": [{"content": [{"type": "output_text", "text": ""}]}, {"type": "function_call"}]},
        {"content": [{"type": "text", "text": ""}, {"type": "tool_use", "name": "a"}]},
        {"content": [{"type": "tool_use", "name": "a"}]},
    ],
)
def test_the_answer_is_the_whole_response_if_it_has_tool_calls_and_no_text(body: object) -> None:
    assert answer_text(json.dumps(body).encode()) == json.dumps(body)
