from collections.abc import Generator
from pathlib import Path

import pytest

from batchwright.starter.folder import dropped_files
from tests.unit.starter.cli import Cli, served
from tests.unit.starter.folder.inbox import Inbox


@pytest.fixture(scope="package")
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


@pytest.fixture
def inbox(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inbox:
    """An empty folder, and an API without data. Dropped files count as complete immediately."""
    monkeypatch.setattr(dropped_files, "COMPLETE_AFTER_SECONDS", 0)
    cli.api.clear()
    return Inbox(cli, tmp_path / "inbox")
