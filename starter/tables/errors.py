"""Error of a table or a template. Its message is for the user."""

from pathlib import Path


class TableError(Exception):
    """A table, a template or an output file cannot be used. The message is one sentence for the user."""


class RowError(TableError):
    """One row of a table cannot be used. The message contains the table, the row and the reason.

    Args:
        number: number of the row, from 1. The header of a CSV file is not counted.
    """

    def __init__(self, path: Path, number: int, why: str) -> None:
        super().__init__(f"{path}, row {number:,}: {why}")
