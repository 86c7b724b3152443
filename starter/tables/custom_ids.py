"""Custom ids of rows. The custom id connects the request that was made from a row with its result."""

from uuid import UUID

from batchwright.rules.input.digest_set import DigestSet
from batchwright.starter.tables.errors import RowError
from batchwright.starter.tables.reading import Row, Table


class CustomIds:
    """The custom ids of the rows of a table.

    A custom id is the value in a column, or `row-N` with the number N of the row. Ids from a column are
    remembered to find duplicates. This needs at most 32 bytes of memory for each row.

    Args:
        column: the column with the custom ids; None to use `row-N`.
    """

    def __init__(self, table: Table, column: str | None) -> None:
        self._table, self._column = table, column
        self._seen = DigestSet()

    def take(self, number: int, row: Row) -> str:
        """Return the custom id of row `number`. Call this exactly once for each row.

        Raises:
            RowError: the row has no usable id, or an earlier row has the same id.
        """
        custom_id = self._id_of(number, row)
        if self._column is not None and not self._seen.add(custom_id.encode("utf-8", "surrogatepass")):
            first = next(
                n for n, each in enumerate(self._table.rows(), 1) if self._id_of(n, each) == custom_id
            )
            why = f"column {self._column!r} has {custom_id!r}, as row {first:,} has; each row needs its own."
            raise RowError(self._table.path, number, why)
        return custom_id

    def _id_of(self, number: int, row: Row) -> str:
        if self._column is None:
            return f"row-{number}"
        value = row.get(self._column)
        if isinstance(value, int | UUID) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value:
            return value
        if self._column not in row:
            why = f"there is no column {self._column!r}, which --id names; the columns are {', '.join(row)}."
        else:
            why = f"column {self._column!r} has {value!r}, but a custom id is a text or an integer."
        raise RowError(self._table.path, number, why)
