"""The SQL of the package, read from its files: named queries, and migrations."""

import hashlib
import re
from collections.abc import Callable
from importlib.resources import files
from typing import NamedTuple, TypeVar

# In a migration that older versions cannot live with.
_BREAKING = "-- breaks older versions"
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
T = TypeVar("T")


class Migration(NamedTuple):
    """`breaking`: versions that do not know it cannot work with the tables it leaves."""

    name: str
    sql: str
    checksum: str
    breaking: bool = False


def queries(kind: Callable[..., T], table: str) -> T:
    """`queries/<table>.sql` as a `kind`, which has one field for each `-- name: x` there.

    Raises:
        TypeError: the fields and the names differ.
    """
    text = files("batchwright.database").joinpath(f"queries/{table}.sql").read_text("utf-8")
    _, *parts = _NAME.split(text)
    named = zip(parts[::2], parts[1::2], strict=True)
    return kind(**{name: sql.strip() for name, sql in named})


def migrations() -> list[Migration]:
    """All there are, in the order they are applied."""
    folder = files("batchwright.database").joinpath("migrations")
    found = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted(migration_of(file.name, file.read_bytes()) for file in found)


def migration_of(name: str, content: bytes) -> Migration:
    """A file as it is applied."""
    sql = content.decode()
    return Migration(name, sql, hashlib.sha256(content).hexdigest(), _BREAKING in sql)
