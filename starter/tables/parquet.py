"""Reads and writes Parquet files with pyarrow, which is installed with `batchwright[tables]`."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false
# pyarrow's stubs leave parts of most types unknown.

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from batchwright.starter.tables.errors import RowError, TableError
from batchwright.starter.tables.reading import MAX_ROW_BYTES, Row, Table, readable

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ModuleNotFoundError:
    raise TableError("Parquet files need pyarrow: pip install 'batchwright[tables]'.") from None

_ROWS_AT_ONCE = 1_000
_BYTES_AT_ONCE = 64 * 1024 * 1024  # of rows that are converted together
_NUMBER_BYTES = 8  # size of a value that is no text, such as a number
_UTF8_BYTES = 4  # the most bytes of a character
_TEXTS = ("STRING", "ENUM", "NONE")  # logical types of texts and bytes; NONE is for bytes


class ParquetTable:
    """A table in a Parquet file. pyarrow decides which Python types the values have."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def columns(self) -> list[str]:
        return self.schema().names

    def rows(self) -> Generator[Row]:
        """Yield the rows in the order of the file.

        Raises:
            TableError: the file cannot be read, or a row has more than MAX_ROW_BYTES bytes.
        """
        with self._opened() as file, self._explained():
            names, number = file.schema_arrow.names, 0
            for batch in self._batches(file):
                columns = zip(names, batch.columns, strict=True)
                values = zip(*(self._python_values(*column) for column in columns), strict=True)
                for size in _sum_of(batch.columns, batch.num_rows).to_pylist():
                    number += 1
                    if (size or 0) > MAX_ROW_BYTES:  # a text counts for each row that contains it
                        why = f"it has more than {MAX_ROW_BYTES:,} bytes once it is expanded."
                        raise RowError(self.path, number, why)
                    yield dict(zip(names, next(values), strict=True))

    def _batches(self, file: pq.ParquetFile) -> Generator[pa.RecordBatch]:
        """Yield the rows of `file` in blocks of about `_ROWS_AT_ONCE` rows (Arrow's record batches).

        Texts are read into Arrow's dictionaries. A dictionary contains each different text only once. The row
        groups (sections of a Parquet file) are read one by one, because pyarrow cannot join the dictionaries
        of several groups.

        If pyarrow cannot read a row group into dictionaries, read the rest of this group row by row, without
        dictionaries. The cause is a column with lists of texts that the file stores partly with and partly
        without a dictionary.
        """
        for group in range(file.num_row_groups):
            done = 0
            try:
                for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=[group]):
                    yield batch
                    done += batch.num_rows
            except pa.ArrowNotImplementedError:
                with pq.ParquetFile(self.path) as expanded:
                    rows = expanded.iter_batches(batch_size=1, row_groups=[group])
                    yield from islice(rows, done, None)

    def _python_values(self, name: str, column: pa.Array) -> Generator[object]:
        """Yield the values of the column `name` as Python objects.

        Raises:
            TableError: Python cannot represent a value, for example a time with nanoseconds or after the year
                9999.
        """
        try:
            yield from _values_of(column)
        except pa.ArrowException:
            raise
        except (ValueError, OverflowError) as error:
            raise TableError(
                f"{self.path}: column {name!r} ({column.type}) has a value that cannot be read: "
                f"{str(error).split('. ')[0]}. Write the column as text, or times in microseconds."
            ) from None

    def schema(self) -> pa.Schema:
        """Return the types of the columns.

        Raises:
            TableError: the file cannot be read.
        """
        with self._opened(), pq.ParquetFile(self.path) as file:  # without Arrow's dictionaries
            return file.schema_arrow

    @contextmanager
    def _opened(self) -> Generator[pq.ParquetFile]:
        with readable(self.path), self.path.open("rb") as opened:
            with self._explained():
                file = pq.ParquetFile(opened, read_dictionary=_texts_of(pq.read_metadata(opened).schema))
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


def _texts_of(schema: pq.ParquetSchema) -> list[str]:
    """Return the paths of the columns with text or bytes, including those inside lists and structs.

    These columns are read as dictionaries to save memory: a value that millions of rows repeat is in memory
    only once.
    """
    columns = (schema.column(number) for number in range(len(schema)))
    return [
        column.path
        for column in columns
        if column.physical_type == "BYTE_ARRAY" and column.logical_type.type in _TEXTS
    ]


def _values_of(column: pa.Array) -> Iterable[object]:
    """Return the values of a column as Python objects.

    If the values are lists, structs or maps, create each object only when the caller needs the object. This
    saves memory, because each such object contains copies of its texts.
    """
    if pa.types.is_nested(column.type):
        return (value.as_py() for value in column)
    if not isinstance(column, pa.DictionaryArray):
        return column.to_pylist()
    numbers = column.indices.to_pylist()
    texts = {number: column.dictionary[number].as_py() for number in set(numbers) if number is not None}
    return [texts.get(number) for number in numbers]


def _sum_of(columns: Sequence[pa.Array], rows: int) -> pa.Array:
    total = pa.repeat(pa.scalar(0, pa.int64()), rows)
    for column in columns:
        total = pc.add(total, _sizes_of(column))
    return total


def _sizes_of(column: pa.Array) -> pa.Array:
    """Return the size of each value of a column in bytes. The size of null is 0."""
    if isinstance(column, pa.DictionaryArray):
        sizes = pc.take(_sizes_of(column.dictionary), column.indices)
    elif isinstance(column, pa.ExtensionArray):  # such as JSON
        sizes = _sizes_of(column.storage)
    elif isinstance(column, pa.StructArray):
        sizes = _sum_of(column.flatten(), len(column))
    elif isinstance(column, pa.ListArray | pa.LargeListArray | pa.MapArray):
        first = pa.array([0], pa.int64())
        until = pa.concat_arrays([first, pc.cumulative_sum(_sizes_of(column.values))])
        at_offsets = pc.take(until, column.offsets)
        sizes = pc.subtract(at_offsets[1:], at_offsets[:-1])
    elif isinstance(column, pa.FixedSizeListArray):
        sizes = _sizes_of(column.cast(pa.list_(column.type.value_type)))
    elif isinstance(column, pa.StringArray | pa.LargeStringArray | pa.BinaryArray | pa.LargeBinaryArray):
        sizes = pc.binary_length(column).cast(pa.int64())
    else:
        sizes = pa.repeat(pa.scalar(_NUMBER_BYTES, pa.int64()), len(column))
    return sizes.fill_null(0)


class _Chunk:
    """A group of rows that is converted to Arrow in one step.

    The number of rows and their total size are limited, because the conversion needs memory. If several rows
    contain the same text, the conversion copies the text for each row.
    """

    def __init__(self) -> None:
        self.rows, self._bytes = list[Row](), 0

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= _ROWS_AT_ONCE or self._bytes >= _BYTES_AT_ONCE

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._bytes += _size_of(row)


def _size_of(value: object) -> int:
    """Return an upper estimate of the size of a value in Arrow, in bytes.

    Each character of a text that is not ASCII counts as 4 bytes, the maximum in UTF-8.
    """
    if isinstance(value, str):
        return len(value) if value.isascii() else _UTF8_BYTES * len(value)
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size_of, value.values()))
    return sum(map(_size_of, value)) if isinstance(value, list | tuple) else _NUMBER_BYTES


class ParquetWriter:
    """A writer of rows to a Parquet file, used as a context manager.

    Args:
        table: table whose columns are the first columns of the file. The rows of this table are not copied:
            the caller writes each row.
        added: names and Python types (`str` or `int`) of the columns after the columns of `table`.

    Raises:
        TableError: a column has values of different types.
    """

    def __init__(self, path: Path, table: Table, added: Sequence[tuple[str, type]]) -> None:
        self._path, self._chunk = path, _Chunk()
        fields = [pa.field(name, pa.int64() if kind is int else pa.string()) for name, kind in added]
        self._schema = pa.schema([*_schema_of(table), *fields])
        self._stored = pa.schema([field.with_type(_stored_type(field.type)) for field in self._schema])
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
        self._chunk.add(row)
        if self._chunk.is_full:
            self._flush()

    def _flush(self) -> None:
        if self._chunk.rows:
            table = pa.Table.from_pylist(self._chunk.rows, schema=self._stored)
            self._writer.write_table(table.cast(self._schema))
        self._chunk = _Chunk()


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Arrow stores values of the type `kind`, such as 16 bytes for a UUID.

    If Python's lists or dicts contain values such as UUIDs or JSON, pyarrow cannot convert the lists or dicts
    directly to `kind`. But pyarrow can convert them to the stored type, and cast the result to `kind`.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if isinstance(kind, pa.StructType):
        return pa.struct([field.with_type(_stored_type(field.type)) for field in kind])
    if isinstance(kind, pa.MapType):
        return pa.map_(_stored_type(kind.key_type), _stored_type(kind.item_type))
    if isinstance(kind, pa.ListType):
        return pa.list_(kind.value_field.with_type(_stored_type(kind.value_type)))
    return kind


def _schema_of(table: Table) -> pa.Schema:
    """Return the type of each column of a table.

    If the table's format has no types, all values are read to find the types.

    Raises:
        TableError: the values of a column do not fit into one type.
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
    number = 1  # number of the first row of the chunk
    for chunk in _chunks(table.rows()):
        try:
            yield pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in chunk]).schema
        except OverflowError:
            _check_integers(table, number, chunk)
            raise
        number += len(chunk)


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    chunk = _Chunk()
    for row in rows:
        chunk.add(row)
        if chunk.is_full:
            yield chunk.rows
            chunk = _Chunk()
    if chunk.rows:
        yield chunk.rows


def _check_integers(table: Table, number: int, rows: Sequence[Row]) -> None:
    """Check that all integers in the rows fit into 64 bits, because Parquet has no larger integers.

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
