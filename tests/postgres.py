"""A PostgreSQL server that is created once in a test run. The servers of the tests are copies of it."""

import asyncio
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from batchwright.database.driver import connect
from batchwright.database.migrate import migrate
from batchwright.starter.embedded_stack.postgres.installation import exclusively
from batchwright.starter.embedded_stack.postgres.server_process import EmbeddedPostgres

TEMPLATE = "batchwright_template"  # a migrated database without rows
# No test takes the power away, and none fills tables for long enough to need a vacuum.
SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off"}


def stopped_server(folder: Path) -> Path:
    """Return the directory of a stopped server with the database `TEMPLATE`, below `folder`.

    The first process that calls this creates the server. Others wait for it.
    """
    root, unfinished = folder / "postgres", folder / "postgres.unfinished"
    with exclusively(folder / "postgres.lock"):
        if not root.exists():
            with EmbeddedPostgres(unfinished, settings=SETTINGS) as server:
                asyncio.run(_fill(server.dsn))
            unfinished.rename(root)
    return root


def copy_server(stopped: Path, root: Path) -> None:
    """Copy the directory of a stopped server. The files keep their owners."""
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", f"{stopped}/.", root], check=True)


async def execute(url: str, sql: str) -> None:
    connection = await connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


def database_of(server: str, name: str) -> str:
    """Return the URL of a database, from the URL of another database of the same server."""
    return f"{server.rpartition('/')[0]}/{name}"


async def _fill(server: str) -> None:
    password = urlsplit(server).password
    # A client hashes its password as often as this says: by default, thousands of times for each connection.
    await execute(server, f"SET scram_iterations = 1; ALTER ROLE postgres PASSWORD '{password}'")
    await execute(server, f"CREATE DATABASE {TEMPLATE}")
    await migrate(database_of(server, TEMPLATE))
