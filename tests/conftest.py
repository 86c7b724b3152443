"""Adapters for tests: in memory, on the local disk, and a PostgreSQL with a fresh database each."""

import asyncio
import gc
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from secrets import token_hex

import hypothesis
import pytest

from batchwright.database.base import DatabaseLike
from batchwright.database.driver import connect
from batchwright.database.migrate import migrate
from batchwright.database.pool import Database, open_database
from batchwright.settings import load
from batchwright.storage.base import Storage
from batchwright.storage.local import LocalStorage
from starter.stack.postgres import EmbeddedPostgres
from tests.fakes.database import MemoryDatabase
from tests.fakes.s3 import S3Server, moto_server, real_server
from tests.fakes.storage import MemoryStorage
from tests.guard import guarded

pytest_plugins = ["tests.second_tries"]

# What tests ask is on this machine, whatever proxy its variables name for the world.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(
    filter(None, ("127.0.0.1,localhost", os.environ.get("NO_PROXY") or os.environ.get("no_proxy")))
)

# Looking for garbage after each 700 objects takes a sixth of the time that quick tests do.
gc.set_threshold(20_000)

# How long an example takes is the machine's business.
_PATIENT = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("thorough", _PATIENT)
hypothesis.settings.register_profile("quick", _PATIENT, max_examples=15)
hypothesis.settings.register_profile("fuzz", _PATIENT, max_examples=10_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "thorough"))

# Nothing else than a real server does what they test.
collect_ignore = [] if real_server() else ["integration/test_storage_s3_real.py"]

_TEMPLATE = "batchwright_template"
# No test takes the power away.
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def pytest_configure() -> None:
    guarded()


def pytest_collection_finish() -> None:
    """Modules and tests stay: the collector of garbage need not look at them again and again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Generator[None]:
    """What a process's main configures ends with its test: its stream does too."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def memory_storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def memory_database() -> MemoryDatabase:
    return MemoryDatabase()


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "objects")


@pytest.fixture(scope="session")
def moto() -> Generator[S3Server]:
    with moto_server() as server:
        asyncio.run(server.make_bucket())
        yield server


@pytest.fixture(scope="session")
def real_s3() -> S3Server:
    """Raises KeyError without the server's keys; nothing asks for it where no real server is named."""
    server = real_server()
    assert server is not None
    asyncio.run(server.make_bucket())
    return server


_S3 = ["moto", *(["real_s3"] if real_server() else [])]


_S3_PARAMS = [pytest.param(name, marks=pytest.mark.integration) for name in _S3]


@pytest.fixture(params=_S3_PARAMS)
def s3(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Every S3 server there is; its keys are in the environment."""
    server: S3Server = request.getfixturevalue(request.param)
    server.lend_keys(monkeypatch)
    return server


@pytest.fixture
async def moto_storage(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Storage, None]:
    async with moto.storage(monkeypatch) as storage:
        yield storage


@pytest.fixture
async def real_s3_storage(
    real_s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Storage, None]:
    async with real_s3.storage(monkeypatch) as storage:
        yield storage


_REMOTE = [pytest.param(f"{name}_storage", marks=pytest.mark.integration) for name in _S3]


@pytest.fixture(params=["memory_storage", "storage", *_REMOTE])
def any_storage(request: pytest.FixtureRequest) -> Storage:
    """Every storage there is, for the suite they share."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def _server() -> Generator[str, None, None]:
    # Not below pytest's own folder: the server may run as another user, who could not enter it.
    root = Path(tempfile.mkdtemp(prefix="batchwright-postgres-"))
    server = EmbeddedPostgres(root, settings=_FAST).start()
    yield server.dsn
    server.stop()
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url(_server: str) -> str:
    """A migrated database that nothing connects to: PostgreSQL copies only such ones."""
    asyncio.run(_execute(_server, f"CREATE DATABASE {_TEMPLATE}"))
    url = _of(_server, _TEMPLATE)
    asyncio.run(migrate(url))
    return url


@pytest.fixture
async def database_url(_server: str, postgres_url: str) -> AsyncGenerator[str, None]:
    """The URL of a fresh migrated database, for tests that start processes or break connections."""
    name = f"test_{token_hex(6)}"
    await _execute(_server, f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
    yield _of(_server, name)
    await _execute(_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database, None]:
    database = await open_database(load(database_url=database_url, database_pool_size=5))
    yield database
    await database.close()


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.integration)])
def any_database(request: pytest.FixtureRequest) -> DatabaseLike:
    """Every database there is, for the suite they share."""
    fixtures = {"memory": "memory_database", "postgres": "database"}
    return request.getfixturevalue(fixtures[request.param])


async def _execute(url: str, sql: str) -> None:
    connection = await connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


def _of(url: str, name: str) -> str:
    return url.rpartition("/")[0] + "/" + name
