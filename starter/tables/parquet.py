"""Reads and writes Parquet files with pyarrow, which is installed with `batchwright[tables]`."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false
# pyarrow's stubs leave parts of most types unknown.

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from batchwright.starter.tables.errors import RowError, TableError
from batchwright.starter.tables.reading import Row, Table, in_chunks, readable

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError:
    raise TableError("Parquet files need pyarrow: pip install 'batchwright[tables]'.") from None

_ROWS_AT_ONCE = 1_000


class ParquetTable:
    """Table in a Parquet file. pyarrow decides which Python types the values have."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def columns(self) -> list[str]:
        return self.schema().names

    def rows(self) -> Generator[Row]:
        with self._opened() as file, self._explained():
            names = file.schema_arrow.names
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
                columns = [_values_of(column) for column in batch.columns]
                yield from (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))

    def schema(self) -> pa.Schema:
        """Return the types of the columns.

        Raises:
            TableError: the file cannot be read.
        """
        with self._opened() as file:
            return file.schema.to_arrow_schema()

    @contextmanager
    def _opened(self) -> Generator[pq.ParquetFile]:
        with readable(self.path), self.path.open("rb") as opened:
            with self._explained():
                file = pq.ParquetFile(opened, read_dictionary=_texts_of(pq.read_schema(opened)))
            names = file.schema_arrow.names
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise TableError(f"{self.path} has two columns with the name {twice!r}; rename one.")
            with file:
                yield file

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except pa.ArrowException as error:
            raise TableError(f"{self.path} is not a readable Parquet file: {error}.") from None


def _texts_of(schema: pa.Schema) -> list[str]:
    """Return the names of the columns with text or bytes. They are read as dictionaries, to save memory.

    In a dictionary, a value that millions of rows repeat is in memory only once.
    """
    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return [field.name for field in schema if field.type in kinds]


def _values_of(column: pa.Array) -> Sequence[object]:
    if not isinstance(column, pa.DictionaryArray):
        return column.to_pylist()
    numbers = column.indices.to_pylist()
    texts = {number: column.dictionary[number].as_py() for number in set(numbers) if number is not None}
    return [texts.get(number) for number in numbers]


class ParquetWriter:
    """Writes rows to a Parquet file. It is a context manager.

    Args:
        table: source of the rows. Its columns come first.
        added: further columns with their Python types, `str` or `int`.

    Raises:
        TableError: a column has values of different types.
    """

    def __init__(self, path: Path, table: Table, added: Sequence[tuple[str, type]]) -> None:
        self._path, self._rows = path, list[Row]()
        fields = [pa.field(name, pa.int64() if kind is int else pa.string()) for name, kind in added]
        self._schema = pa.schema([*_schema_of(table), *fields])
        self._writer = pq.ParquetWriter(path, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._flush()
        finally:
            self._writer.close()

    def write(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows.clear()


def _schema_of(table: Table) -> pa.Schema:
    """Return the type of each column of a table.

    If the format of the table has no types, all values are read to find them.
    """
    if isinstance(table, ParquetTable):
        return table.schema()
    columns = table.columns()
    empty = pa.schema([pa.field(name, pa.null()) for name in columns])
    try:
        return pa.unify_schemas([empty, *_schemas(table, columns)], promote_options="permissive")
    except pa.ArrowException as error:
        why = "its values do not fit into one type for each column"
        raise TableError(f"{table.path} cannot be written as Parquet: {why} ({error}).") from None


def _schemas(table: Table, columns: list[str]) -> Iterator[pa.Schema]:
    number = 1  # of the first row of the chunk
    for chunk in in_chunks(table.rows(), _ROWS_AT_ONCE):
        try:
            yield pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in chunk]).schema
        except OverflowError:
            _check_integers(table, number, chunk)
            raise
        number += len(chunk)


def _check_integers(table: Table, number: int, rows: Sequence[Row]) -> None:
    """Check that all integers in the rows fit into 64 bits, as those of Parquet do.

    Args:
        number: number of the first of these rows.

    Raises:
        RowError: an integer is too large.
    """
    for at, row in enumerate(rows, number):
        for name, value in row.items():
            try:
                pa.Table.from_pylist([{name: value}])
            except OverflowError:
                why = (
                    f"column {name!r} has an integer that does not fit into 64 bits, so it cannot be written "
                    "as Parquet; make it a text, or choose an --output with .csv or .jsonl."
                )
                raise RowError(table.path, at, why) from None
            except pa.ArrowException:
                continue  # its values have different types, which is reported for the table
