"""Parquet files of tests."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyarrow's stubs leave parts of most types unknown.

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Rows = list[dict[str, object]]
_TEXT_TYPES = {"large_string": pa.large_string(), "binary": pa.binary(), "large_binary": pa.large_binary()}


def write_parquet(path: Path, rows: Sequence[dict[str, object]], rows_in_group: int = 1_000) -> None:
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=rows_in_group)


def read_parquet(path: Path) -> Rows:
    return pq.read_table(path).to_pylist()


def type_of(path: Path, column: str) -> str:
    return str(pq.read_schema(path).field(column).type)


def write_repeated_as(kind: str, path: Path, text: str, rows: int) -> None:
    """Write a file with the text in each row of the column `a`, whose type is `kind`."""
    values = pa.array([text] * rows, pa.string()).cast(_TEXT_TYPES[kind])
    pq.write_table(pa.table({"a": values}), path)


def write_repeated(path: Path, text: str, rows: int) -> None:
    """Write a file with the text in each row of the column `a`, and nulls in the column `b`."""
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
    table = pa.table({"a": repeated, "b": pa.array([None] * rows, pa.string())})
    pq.write_table(table.replace_schema_metadata(None), path, store_schema=False)
