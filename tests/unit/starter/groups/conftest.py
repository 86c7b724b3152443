"""Commands of an API with small batches, and an input that is too large for one batch."""

from collections.abc import Generator
from pathlib import Path

import pytest

from batchwright.rules.input.oversized_input import PartLimits
from batchwright.starter.client import Client
from tests.unit.starter.cli import LINE, Cli, served


@pytest.fixture(scope="module")
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


@pytest.fixture
def small(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands of an API whose batches have at most two lines."""

    def part_limits(client: Client) -> PartLimits:
        return PartLimits(lines=2, file_bytes=1_000_000)

    monkeypatch.setattr(Client, "part_limits", part_limits)
    return cli


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "input.jsonl"
    path.write_text("".join(LINE.replace('"a"', f'"{tmp_path.name}-{number}"') for number in range(5)))
    return path
