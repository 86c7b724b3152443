"""Reads the named queries and the migrations from the SQL files of this package."""

import hashlib
import re
from collections.abc import Callable
from importlib.resources import files
from typing import NamedTuple, TypeVar

# Marks a migration whose tables older versions cannot use.
_BREAKING = "-- breaks older versions"
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
T = TypeVar("T")


class Migration(NamedTuple):
    """An SQL file that creates or changes tables.

    `checksum` is the SHA-256 of the file. `breaking` is True if older versions of Batchwright cannot use the
    changed tables.
    """

    name: str
    sql: str
    checksum: str
    breaking: bool = False


def queries(kind: Callable[..., T], table: str) -> T:
    """Load the SQL statements of a table, and return them as an instance of the dataclass `kind`.

    The statements are in the file `queries/<table>.sql`. The statement after a line `-- name: x` becomes the
    field `x`.

    Raises:
        TypeError: the fields of `kind` differ from the names in the file.
    """
    text = files("batchwright.database").joinpath(f"queries/{table}.sql").read_text("utf-8")
    _, *parts = _NAME.split(text)
    named = zip(parts[::2], parts[1::2], strict=True)
    return kind(**{name: sql.strip() for name, sql in named})


def migrations() -> list[Migration]:
    """Return all migrations of this package, in the order in which they are applied."""
    folder = files("batchwright.database").joinpath("migrations")
    found = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted(migration_of(file.name, file.read_bytes()) for file in found)


def migration_of(name: str, content: bytes) -> Migration:
    """Return the migration for a file with this name and content."""
    sql = content.decode()
    return Migration(name, sql, hashlib.sha256(content).hexdigest(), _BREAKING in sql)
