"""Output of commands: tables, JSON with control characters, dates, forecasts, and help texts."""

import json
import sys
from datetime import datetime
from io import StringIO

import pytest
from typer.testing import CliRunner

from batchwright.contracts.api_objects.openai import ForecastObject
from batchwright.contracts.temporal_payloads.batch import WindowFit
from batchwright.rules.terminal_text import terminal_json
from batchwright.starter.__main__ import app
from batchwright.starter.batch_output import forecast_text
from batchwright.starter.commands.batches.results import terminal_lines
from batchwright.starter.output import column_table, short_timestamp, stdout


def test_a_piped_table_is_neither_wrapped_nor_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = StringIO()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", pipe)
    table = column_table("id", "reason")
    table.add_row("failed", "a reason that is wider than the forty columns of the terminal")
    table.add_row("a", "b")
    stdout().print(table)
    lines = pipe.getvalue().splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert lines[1].endswith("of the terminal")
    assert len(lines) == 3


def test_control_characters_in_json_become_escapes_with_the_same_meaning() -> None:
    text = json.dumps({"a": "x\x9b31my\x7f\u202e"}, ensure_ascii=False)
    shown = terminal_json(text)
    assert not any(char in shown for char in "\x9b\x7f\u202e")
    assert json.loads(shown) == json.loads(text)


def test_a_control_character_that_spans_two_pieces_is_escaped() -> None:
    assert b"".join(terminal_lines([b'"\xc2', b'\x9b"\n'])) == b'"\\u009b"\n'


def test_a_date_has_a_year_unless_it_is_of_this_year() -> None:
    now = datetime.now()
    assert short_timestamp(int(now.timestamp())) == now.strftime("%m-%d %H:%M")
    assert short_timestamp(int(datetime(2020, 5, 6, 7, 8).timestamp())) == "2020-05-06 07:08"
    assert short_timestamp(None) == ""


def test_a_forecast_without_throughput_says_that_nothing_is_sent() -> None:
    forecast = ForecastObject(
        window=WindowFit.FITS,
        remaining_seconds_p50=52,
        remaining_seconds_p90=60,
        lines_per_second=0.01,
        lines_ahead=0,
        made_at=0,
    )
    assert "no lines are sent now" in forecast_text(forecast)
    assert "0.0 lines/s" not in forecast_text(forecast)


@pytest.mark.parametrize(
    "command",
    [
        ["submit"],
        ["retry"],
        ["collect"],
        ["dev"],
        ["keys", "create"],
        ["queues"],
        ["admin", "batches", "list"],
        ["admin", "audit-log", "list"],
    ],
)
def test_help_names_values_without_types_in_80_columns(command: list[str]) -> None:
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80"}).stdout
    assert "<" not in shown.replace("<=", "")
    assert "{" not in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("validate", "a.jsonl", "--endpoint", "chat"), "'chat' is not one of '/v1/responses', "),
        (
            ("list", "--created-after", "yesterday"),
            "'yesterday' does not match the formats 'YYYY-MM-DD', 'YYYY-MM-DDThh:mm', 'YYYY-MM-DDThh:mm:ss'.",
        ),
    ],
    ids=["choice", "time"],
)
def test_an_error_about_a_value_names_no_error_or_format_of_python(
    arguments: tuple[str, ...], reason: str
) -> None:
    refused = CliRunner().invoke(app, list(arguments))
    assert refused.exit_code == 3
    assert f"'{arguments[-2]}': {reason}" in refused.stderr
