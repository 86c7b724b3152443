"""Batches of a group, as the database and the storage have them."""

from pathlib import Path

from batchwright.database.records import BatchRow
from tests.unit.starter.cli import Cli


def rows(cli: Cli, group: str) -> list[BatchRow]:
    """Return the batches of a group in the order of their creation."""
    batches = cli.api.database.rows.batches.values()
    found = [row for row in batches if (row.order.metadata or {}).get("batchwright.group") == group]
    return sorted(found, key=lambda row: row.order.batch_id)


def contents(cli: Cli, group: str) -> list[bytes]:
    files = cli.api.database.rows.files
    ids = [row.order.input_file_id for row in rows(cli, group)]
    return [cli.api.storage.objects[files["default", id].storage_key] for id in ids]


def submitted(cli: Cli, file: Path, *options: str) -> str:
    result = cli.run("submit", str(file), *options)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()
