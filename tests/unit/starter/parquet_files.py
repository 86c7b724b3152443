"""Parquet files of tests."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyarrow's stubs leave parts of most types unknown.

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

Rows = list[dict[str, object]]
_POOLS = list[pa.MemoryPool]()  # kept, because memory of a pool may be freed after its test
_TEXT_TYPES = {"large_string": pa.large_string(), "binary": pa.binary(), "large_binary": pa.large_binary()}


def write_parquet(path: Path, rows: Sequence[dict[str, object]], rows_in_group: int = 1_000) -> None:
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=rows_in_group)


def write_times(path: Path, unit: Literal["s", "ns"], values: Sequence[int]) -> None:
    """Write a file with a column `at` of times. They are given in this unit, such as `ns`, since 1970."""
    pq.write_table(pa.table({"at": pa.array(values, pa.timestamp(unit))}), path)


def read_parquet(path: Path) -> Rows:
    return pq.read_table(path).to_pylist()


def row_groups(path: Path) -> int:
    return pq.read_metadata(path).num_row_groups


def type_of(path: Path, column: str) -> str:
    with pq.ParquetFile(path) as file:
        return str(file.schema_arrow.field(column).type)


def write_logical_types(path: Path, ids: Sequence[UUID], *, by_arrow: bool = False) -> None:
    """Write a file with UUIDs in the column `id`, JSON in `json`, and lists of one UUID in `list`.

    If `by_arrow` is True, the file also has Arrow's own description of the types.
    """
    uuids = pa.array(ids, pa.uuid())
    lists = pa.ListArray.from_arrays(list(range(len(ids) + 1)), uuids)
    texts = pa.array([f'{{"at": "{id}"}}' for id in ids], pa.json_())
    pq.write_table(pa.table({"id": uuids, "json": texts, "list": lists}), path, store_schema=by_arrow)


def write_repeated_as(kind: str, path: Path, text: str, rows: int) -> None:
    """Write a file with the text in each row of the column `a`, whose type is `kind`."""
    values = pa.array([text] * rows, pa.string()).cast(_TEXT_TYPES[kind])
    pq.write_table(pa.table({"a": values}), path)


def write_repeated(path: Path, text: str, rows: int) -> None:
    """Write a file with the text in each row of the column `a`, and nulls in the column `b`."""
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
    table = pa.table({"a": repeated, "b": pa.array([None] * rows, pa.string())})
    pq.write_table(table.replace_schema_metadata(None), path, store_schema=False)


def write_nested(path: Path, text: str, times: int, rows: int) -> None:
    """Write a file that repeats the text: in lists, structs and maps of each row, together `times` times."""
    row: dict[str, object] = {
        "list": [text] * (times - 2),
        "struct": {"text": text, "n": 1},
        "map": [("k", text)],
    }
    texts = pa.string()
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("list", pa.list_(texts)),
            ("struct", pa.struct([("text", texts), ("n", pa.int64())])),
            ("map", pa.map_(texts, texts)),
        ]
    )
    with pq.ParquetWriter(path, schema, store_schema=False) as writer:
        for first in range(0, rows, 10):
            some = [{"n": number, **row} for number in range(first, min(first + 10, rows))]
            writer.write_table(pa.Table.from_pylist(some, schema=schema))


def write_map(path: Path, entries: Sequence[tuple[str, float]]) -> None:
    """Write a file with one row, whose column `m` is a map with these entries."""
    maps = pa.array([list(entries)], pa.map_(pa.string(), pa.float64()))
    pq.write_table(pa.table({"m": maps}), path)


def write_fixed_lists(path: Path, lists: Sequence[list[str | None] | None]) -> None:
    """Write a file with one list of two texts in each row of the column `l`."""
    pq.write_table(pa.table({"l": pa.array(lists, pa.list_(pa.string(), 2))}), path)


@contextmanager
def arrow_memory() -> Generator[Callable[[], int]]:
    """Context manager that yields a function. It returns the most bytes that pyarrow has used at a time."""
    pool = pa.proxy_memory_pool(pa.system_memory_pool())
    _POOLS.append(pool)
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        yield lambda: pool.max_memory() or 0
    finally:
        pa.set_memory_pool(before)
