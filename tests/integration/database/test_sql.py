"""The SQL files: each query exists, reads only rows of one tenant, and names the statuses from which it
changes batches.
"""

import re
from dataclasses import asdict, dataclass

import pytest

from batchwright.database.sql import migrations, queries
from batchwright.database.tables.batches.batch_ends import BatchEndQueries
from batchwright.database.tables.batches.batches import BatchQueries
from batchwright.database.tables.files import FileQueries

BATCHES: list[str] = [
    *asdict(queries(BatchQueries, "batches")).values(),
    *asdict(queries(BatchEndQueries, "batch_ends")).values(),
]
FILES: list[str] = list(asdict(queries(FileQueries, "files")).values())


@dataclass(frozen=True)
class Fewer:
    delete_unlisted: str
    replace_models: str


@dataclass(frozen=True)
class More(Fewer):
    served: str
    another: str


@pytest.mark.parametrize(("kind", "name"), [(Fewer, "served"), (More, "another")])
def test_queries_without_a_field_and_fields_without_a_query_are_reported(
    kind: type[Fewer] | type[More], name: str
) -> None:
    with pytest.raises(TypeError, match=name):
        queries(kind, "models")


def test_a_query_does_not_include_the_name_of_the_next_one() -> None:
    sql = queries(FileQueries, "files")
    assert sql.get == "SELECT * FROM known_files WHERE tenant = $1 AND id = $2"


@pytest.mark.parametrize("sql", [sql for sql in BATCHES + FILES if "INSERT INTO" not in sql])
def test_every_query_reads_the_rows_of_one_tenant(sql: str) -> None:
    assert re.search(r"WHERE (\w\.)?tenant = \$1", sql)


@pytest.mark.parametrize("sql", [sql for sql in BATCHES if "UPDATE batches SET" in sql])
def test_every_update_of_a_batch_names_the_statuses_it_starts_from(sql: str) -> None:
    assert re.search(r"WHERE .*\bstatus (= '\w+'|IN \()", sql)


def test_migrations_have_numbers_of_their_own_and_come_in_their_order() -> None:
    names = [migration.name for migration in migrations()]
    numbers = [name.partition("_")[0] for name in names]
    assert names == sorted(names)
    assert len(set(numbers)) == len(numbers)
    assert all(re.fullmatch(r"\d{4}_[a-z_]+\.sql", name) for name in names)
