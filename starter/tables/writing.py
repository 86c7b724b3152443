"""Writes tables as CSV, JSONL or Parquet."""

import csv
import math
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

import msgspec

from batchwright.starter.output import discard_stdout
from batchwright.starter.tables.errors import TableError
from batchwright.starter.tables.reading import FORMATS, Row, Table

if TYPE_CHECKING:
    from _csv import Writer  # the module `csv` has no name for it

_Container = dict[Any, object] | list[object]


class RowWriter(Protocol):
    def write(self, row: Row) -> None: ...


@contextmanager
def output_file(path: Path | None) -> Generator[BinaryIO]:
    """Context manager that yields a file to write to.

    - If `path` is None, the file is the standard output.
    - If `path` is a pipe or device, the file is this pipe or device.
    - Otherwise, the file is a temporary file. If the block succeeds, the temporary file replaces `path`.

    Raises:
        TableError: the file cannot be written.
    """
    if path is None:
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            discard_stdout()
        return
    with written(path) as target, target.open("wb") as file:
        yield file


def check_output(output: Path, *inputs: Path) -> None:
    """Check that `output` is not one of the files `inputs`. Otherwise, the input would be lost.

    Raises:
        TableError: the output is one of the inputs.
    """
    for path in inputs:
        if path.is_file() and output.exists() and output.samefile(path):
            raise TableError(f"{output} is the input {path}, which would be lost; choose another --output.")


@contextmanager
def written(path: Path) -> Generator[Path]:
    """Context manager that yields a temporary path for new content of the file `path`.

    If the block succeeds, the temporary file replaces `path`. If the block raises an error, `path` stays
    unchanged. If `path` is a symbolic link, the file to which it points is replaced. If `path` is a pipe or
    device, the yielded path is `path` itself.

    Raises:
        TableError: the file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            yield path
            return
        final = Path(os.path.realpath(path))
        target = final.with_name(f".batchwright-{token_hex(8)}")
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            yield target
            target.replace(final)
        finally:
            target.unlink(missing_ok=True)
    except OSError as error:
        raise TableError(f"{path} cannot be written: {error.strerror or error}.") from None


@contextmanager
def table_writer(path: Path, table: Table, added: Sequence[tuple[str, type]]) -> Generator[RowWriter]:
    """Context manager that yields a writer of rows. The suffix of `path`, such as `.csv`, decides the format.

    Args:
        table: an existing table. A CSV or Parquet file begins with the columns of `table`. The caller writes
            all rows, also those of `table`.
        added: names of the columns after the columns of `table`, with their Python types, `str` or `int`.

    Raises:
        TableError: the suffix is unknown, the file cannot be written, or pyarrow is needed and missing.
    """
    match path.suffix.lower():
        case ".csv":
            columns = [*table.columns(), *(name for name, _ in added)]
            with written(path) as target, target.open("w", encoding="utf-8", newline="") as file:
                yield _CsvWriter(csv.writer(file), columns)
        case ".jsonl" | ".ndjson":
            with output_file(path) as file:
                yield _JsonlWriter(file)
        case ".parquet":
            from batchwright.starter.tables.parquet import ParquetWriter  # needs pyarrow, which is optional

            with written(path) as target, ParquetWriter(target, table, added) as writer:
                yield writer
        case _:
            raise TableError(f"{path} has no suffix of a table: its name must end with {FORMATS}.")


class _JsonlWriter:
    """A writer of rows as JSON objects, with NaN and infinity as `"NaN"`, `"Infinity"` and `"-Infinity"`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, row: Row) -> None:
        self._file.write(_json(row) + b"\n")


class _CsvWriter:
    """A writer of rows to a CSV file.

    - Text is written unchanged, null as an empty field, and NaN and infinity as `nan` and `inf`.
    - Lists, structs and maps are written as JSON. In them, NaN and infinity are strings, as in JSONL.
    - Any other value, such as a time, is written as in JSON, but without quotes around it.
    """

    def __init__(self, file: "Writer", columns: list[str]) -> None:
        self._file, self._columns = file, columns
        file.writerow(columns)

    def write(self, row: Row) -> None:
        self._file.writerow([_csv_text(row.get(name)) for name in self._columns])


def _csv_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return "" if value is None else _json(value).decode().strip('"')


def _json(value: object) -> bytes:
    """Encode a value as JSON. NaN and infinity become strings, because JSON has no such numbers.

    The function changes the lists and dicts of the caller: it replaces NaN and infinity in place.
    """
    encoded = msgspec.json.encode(value)
    # msgspec writes such numbers as null. Most rows have only the nulls of their own values.
    own_values = list(cast("Row", value).values()) if isinstance(value, dict) else []
    if encoded.count(b"null") == own_values.count(None):
        return encoded
    holder: list[object] = [value]
    _name_special_floats(holder)
    return msgspec.json.encode(holder[0])


def _name_special_floats(values: list[object]) -> None:
    """Replace NaN and infinity in `values` with strings such as `"NaN"`, also in nested lists and dicts.

    The function is not recursive, because lists and dicts can be nested deeply.
    """
    pending: list[_Container] = [values]
    while pending:
        container = pending.pop()
        members = list(container.items() if isinstance(container, dict) else enumerate(container))
        for key, value in members:
            if isinstance(value, float) and not math.isfinite(value):
                container[key] = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            elif isinstance(value, tuple):  # key and value of a map in Parquet
                entry = list(cast("tuple[object, ...]", value))
                container[key] = entry
                pending.append(entry)
            elif isinstance(value, dict | list):
                pending.append(cast("_Container", value))
