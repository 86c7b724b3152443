"""`batchwright validate`: lines, files and pipes that cannot be an input."""

import bz2
import gzip
import json
import os
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.unit.starter.cli import LINE, Cli, served


@pytest.fixture(scope="module")
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def test_every_bad_line_of_a_file_is_listed(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE + "{\n" + LINE + '{"custom_id": "b", "body": 1}\n')
    ended = cli.run("validate", str(path))
    assert ended.exit_code == 1
    assert [line.split(":")[0] for line in ended.stdout.splitlines()[:3]] == ["line 2", "line 3", "line 4"]
    assert ended.stdout.splitlines()[-1].endswith("4 lines, 3 errors (llama 1)")


def test_the_strict_profile_refuses_more(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    ended = cli.run("validate", str(path), "--json", BATCHWRIGHT_PROFILE="strict")
    report = json.loads(ended.stdout)
    assert (ended.exit_code, report["valid"], report["lines"]) == (1, False, 1)
    assert {error["param"] for error in report["errors"]} == {"method", "url"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (bz2.compress(LINE.encode()), "compressed with bzip2: decompress it first"),
        (LINE.encode("utf-16"), "`iconv -f utf-16 -t utf-8`"),
        (LINE.encode()[:10], "Must be .jsonl. `batchwright validate "),
    ],
    ids=["empty", "packed", "utf-16", "cut short"],
)
def test_a_file_that_cannot_be_an_input_is_named_with_the_remedy(
    cli: Cli, tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / "input.jsonl"
    path.write_bytes(content)
    ended = cli.run("submit", str(path))
    assert ended.exit_code == 3
    assert ended.stderr.startswith(str(path))
    assert why in ended.stderr


def test_a_compressed_file_is_invalid_and_reported_as_compressed(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl.gz"
    path.write_bytes(gzip.compress(LINE.encode()))
    ended = cli.run("validate", str(path))
    assert ended.exit_code == 1
    assert ended.stderr == f"{path} is compressed with gzip: decompress it first.\n"


def test_the_requests_may_come_through_a_pipe(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(LINE,))
    writer.start()
    ended = cli.run("submit", str(path))
    writer.join()
    assert ended.exit_code == 0, ended.stderr


def test_a_good_file_is_valid(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    ended = cli.run("validate", str(path))
    assert ended.exit_code == 0
    assert ended.stdout == f"{path}: 1 line, valid (llama 1)\n"
