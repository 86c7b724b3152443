"""The SQL files: complete, and careful about tenants and statuses."""

import re
from dataclasses import asdict, dataclass

import pytest

from batchwright.database.batches import BatchQueries
from batchwright.database.files import FileQueries
from batchwright.database.sql import migrations, queries

BATCHES: list[str] = list(asdict(queries(BatchQueries, "batches")).values())
FILES: list[str] = list(asdict(queries(FileQueries, "files")).values())


@dataclass(frozen=True)
class Fewer:
    forget: str
    note: str


@dataclass(frozen=True)
class More(Fewer):
    served: str
    another: str


@pytest.mark.parametrize(("kind", "name"), [(Fewer, "served"), (More, "another")])
def test_queries_without_a_field_and_fields_without_a_query_are_named(
    kind: type[Fewer] | type[More], name: str
) -> None:
    with pytest.raises(TypeError, match=name):
        queries(kind, "models")


def test_a_query_is_its_text_without_the_next_ones_name() -> None:
    sql = queries(FileQueries, "files")
    assert sql.get == "SELECT * FROM known_files WHERE tenant = $1 AND id = $2"


@pytest.mark.parametrize("sql", [sql for sql in BATCHES + FILES if "INSERT INTO" not in sql])
def test_every_query_asks_for_one_tenants_rows(sql: str) -> None:
    assert re.search(r"WHERE (\w\.)?tenant = \$1", sql)


@pytest.mark.parametrize("sql", [sql for sql in BATCHES if "UPDATE batches SET" in sql])
def test_every_change_of_a_batch_names_the_statuses_it_may_leave(sql: str) -> None:
    assert re.search(r"WHERE .*\bstatus (= '\w+'|IN \()", sql)


def test_migrations_have_numbers_of_their_own_and_come_in_their_order() -> None:
    names = [migration.name for migration in migrations()]
    numbers = [name.partition("_")[0] for name in names]
    assert names == sorted(names)
    assert len(set(numbers)) == len(numbers)
    assert all(re.fullmatch(r"\d{4}_[a-z_]+\.sql", name) for name in names)
