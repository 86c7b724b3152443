"""Reads CSV, JSONL and Parquet files row by row, with a limited amount of memory."""

import csv
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from batchwright.starter.tables.errors import RowError, TableError

if TYPE_CHECKING:
    from _csv import Reader  # the module `csv` has no name for it

Row = dict[str, object]
FORMATS = ".csv, .jsonl or .parquet"
_SAMPLED_ROWS = 10_000
MAX_ROW_BYTES = 64 * 1024 * 1024


class Table(Protocol):
    """A table in a file. The file can be read several times. Each row is a dict of values by column name.

    `columns` and `rows` raise TableError if the file cannot be read or has a wrong format.
    """

    @property
    def path(self) -> Path: ...

    def columns(self) -> list[str]:
        """Return the names of all columns, in the order of the file."""
        ...

    def rows(self) -> Generator[Row]:
        """Yield the rows in the order of the file."""
        ...


def open_table(path: Path) -> Table:
    """Return a table that reads this file. The suffix of the file name, such as `.csv`, decides the format.

    Raises:
        TableError: the suffix is unknown, or it is `.parquet` and pyarrow is not installed.
    """
    match path.suffix.lower():
        case ".csv":
            return CsvTable(path)
        case ".jsonl" | ".ndjson":
            return JsonlTable(path)
        case ".parquet":
            from batchwright.starter.tables.parquet import ParquetTable  # needs pyarrow, which is optional

            return ParquetTable(path)
        case _:
            raise TableError(f"{path} has no suffix of a table: its name must end with {FORMATS}.")


@contextmanager
def readable(path: Path) -> Generator[None]:
    """Context manager that turns an OSError about a file into a TableError."""
    try:
        yield
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}.") from None


class CsvTable:
    """A table in a CSV file with a header, in UTF-8. All values are text. Blank lines are skipped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def columns(self) -> list[str]:
        with self._opened() as (columns, _):
            return columns

    def rows(self) -> Generator[Row]:
        with self._opened() as (columns, reader):
            number = 1
            while (values := self._next(reader, number)) is not None:
                if not values:
                    continue
                if len(values) != len(columns):
                    counts = f"it has {len(values):,} fields, but the header has {len(columns):,}"
                    raise RowError(self.path, number, f"{counts} (line {reader.line_num:,}).")
                yield dict(zip(columns, values, strict=True))
                number += 1

    @contextmanager
    def _opened(self) -> Generator[tuple[list[str], "Reader"]]:
        csv.field_size_limit(MAX_ROW_BYTES)
        with readable(self.path), self.path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            columns = self._next(reader, 0)
            if not columns:
                raise TableError(f"{self.path} has no header: its first line must have the columns' names.")
            twice = next((name for name in columns if columns.count(name) > 1), None)
            if twice is not None:
                raise TableError(f"{self.path} has two columns with the name {twice!r}; rename one.")
            yield columns, reader

    def _next(self, reader: "Reader", number: int) -> list[str] | None:
        """Return the fields of the next row; None after the last row.

        Args:
            number: number of the row, for errors; 0 for the header.
        """
        try:
            return next(reader, None)
        except UnicodeDecodeError:
            why = f"{self.path} is not UTF-8 text; `iconv -f latin1 -t utf-8` converts Latin-1, for example."
            raise TableError(why) from None
        except csv.Error as error:
            why = f"{error} (line {reader.line_num:,})."
            raise RowError(self.path, number, why) if number else TableError(f"{self.path}: {why}") from None


class JsonlTable:
    """A table in a file with one JSON object in each line. Blank lines are skipped.

    Rows may have different columns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows() for name in row))

    def rows(self) -> Generator[Row]:
        number, decode = 1, msgspec.json.Decoder(Row).decode
        with readable(self.path), self.path.open("rb") as file:
            while line := file.readline(MAX_ROW_BYTES + 1):
                if len(line) > MAX_ROW_BYTES:
                    raise RowError(self.path, number, f"it has more than {MAX_ROW_BYTES:,} bytes.")
                if content := line.removeprefix(b"\xef\xbb\xbf").strip():
                    yield self._decoded(decode, content, number)
                    number += 1

    def _decoded(self, decode: Callable[[bytes], Row], line: bytes, number: int) -> Row:
        try:
            return decode(line)
        except msgspec.ValidationError as error:
            why = f"a value cannot be read: {error}." if line.startswith(b"{") else "it is not a JSON object."
            raise RowError(self.path, number, why) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RowError(self.path, number, f"it is not valid JSON: {error}.") from None


def most_repeated_first(table: Table) -> list[str]:
    """Return the column names, sorted by the number of different values. The lowest number is first.

    Only the first 10,000 rows are read. If the prompts use the columns in this order, many prompts begin with
    the same text. Backends can cache this text.
    """
    values: dict[str, set[int]] = {}
    for row in islice(table.rows(), _SAMPLED_ROWS):
        for name, value in row.items():
            values.setdefault(name, set()).add(hash(value if isinstance(value, str) else repr(value)))
    return sorted(values, key=lambda name: len(values[name]))
