"""Fixtures for databases and storages: in memory, on the local disk, on S3, and on a real PostgreSQL.

Each test with PostgreSQL gets a database of its own, except the tests of tables, which share one.
"""

import asyncio
import gc
import logging
import os
import random
import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from secrets import token_hex

import hypothesis
import pytest

from batchwright.database.database import Database
from batchwright.database.postgres import open_database
from batchwright.settings import load
from batchwright.starter.embedded_stack.postgres.server_process import EmbeddedPostgres
from batchwright.storage.base import Storage
from batchwright.storage.local import LocalStorage
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.s3 import S3Server, moto_server, read_service_models_once, real_server
from tests.fakes.storage import MemoryStorage
from tests.guard import start_guard
from tests.postgres import SETTINGS, TEMPLATE, copy_server, database_of, execute, stopped_server
from tests.run_folder import open_run_folder, run_folder

pytest_plugins = ["tests.second_tries", "tests.file_order", "tests.unselected_files", "tests.one_report"]

# What tests ask is on this machine, whatever proxy its variables name for the world.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(
    filter(None, ("127.0.0.1,localhost", os.environ.get("NO_PROXY") or os.environ.get("no_proxy")))
)

# Looking for garbage after each 700 objects takes a sixth of the time that quick tests do.
gc.set_threshold(20_000)

# How long an example takes is the machine's business.
_PATIENT = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
# The same examples in every run, so that no test passes or fails by chance. `make fuzz` looks for new ones.
hypothesis.settings.register_profile("thorough", _PATIENT, derandomize=True)
hypothesis.settings.register_profile("quick", _PATIENT, derandomize=True, max_examples=15)
hypothesis.settings.register_profile("random", _PATIENT, max_examples=1_000)
hypothesis.settings.register_profile("fuzz", _PATIENT, max_examples=10_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "thorough"))

_S3_REQUIRED = bool(os.environ.get("BATCHWRIGHT_TEST_S3_REQUIRED"))


def pytest_configure(config: pytest.Config) -> None:
    start_guard()
    if not hasattr(config, "workerinput"):  # a process of pytest-xdist inherits the folder
        open_run_folder(config.add_cleanup)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End a process of pytest-xdist immediately after it has sent all its results.

    Otherwise pytest and the interpreter would look through all objects of the process again and again. That
    takes longer than the ten seconds after which the main process kills it.
    """
    if hasattr(config, "workerinput"):
        os._exit(0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Switch garbage collection off while tests are collected. Later collections leave out the objects that
    exist then.

    These objects are modules and tests, which are never freed. Looking through them would take a tenth of the
    time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Generator[None]:
    """Restore the logging configuration after each test, because some tests run a process's main function."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _same_random_numbers(request: pytest.FixtureRequest) -> None:
    """Give each test the same random numbers in every run, so that no test passes or fails by chance."""
    random.seed(request.node.nodeid)


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
def _service_models() -> None:
    read_service_models_once()


@pytest.fixture(scope="session")
def moto(_service_models: None) -> Generator[S3Server]:
    with moto_server() as server:
        asyncio.run(server.make_bucket())
        yield server


@pytest.fixture(scope="session")
def real_s3(_service_models: None) -> S3Server:
    """The real S3 server at BATCHWRIGHT_TEST_S3_URL. If the variable is not set, the test is skipped.

    If BATCHWRIGHT_TEST_S3_REQUIRED is set, as in `.ci/run`, the test fails instead of being skipped.
    """
    server = real_server()
    if server is None:
        missing = "BATCHWRIGHT_TEST_S3_URL names no S3 server: see tests/tools/real-s3"
        if _S3_REQUIRED:
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    asyncio.run(server.make_bucket())
    return server


_S3 = ["moto", *(["real_s3"] if real_server() or _S3_REQUIRED else [])]


S3_SERVERS = [pytest.param(name, marks=pytest.mark.integration) for name in _S3]


@pytest.fixture(params=S3_SERVERS)
def s3(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """An S3 server whose keys are in the environment. The test runs once for each available server."""
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
    """An empty storage.

    The test runs once for each implementation: in memory, on disk, and on each S3 server.
    """
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def stopped_postgres() -> Path:
    """The directory of a stopped PostgreSQL server, which all processes of the test run copy."""
    return stopped_server(run_folder())


@pytest.fixture(scope="session")
def _server(stopped_postgres: Path) -> Generator[str, None, None]:
    # Not below pytest's own folder: the server may run as another user, who could not enter it.
    root = Path(tempfile.mkdtemp(prefix="batchwright-postgres-"))
    copy_server(stopped_postgres, root)
    server = EmbeddedPostgres(root, settings=SETTINGS).start()
    yield server.dsn
    server.stop()
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url(_server: str) -> str:
    """URL of a migrated database, of which the databases of the tests are copies.

    No process may connect to it, because PostgreSQL cannot copy a database that is in use.
    """
    return database_of(_server, TEMPLATE)


@pytest.fixture
async def database_url(_server: str, postgres_url: str) -> AsyncGenerator[str, None]:
    """URL of a new copy of `postgres_url`, for tests that start processes or break connections."""
    name, template = f"test_{token_hex(6)}", postgres_url.rpartition("/")[2]
    # To copy files takes half as long as the default, which writes each page to the log of changes.
    await execute(_server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    yield database_of(_server, name)
    await execute(_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database, None]:
    database = await open_database(load(database_url=database_url, database_pool_size=5))
    yield database
    await database.close()


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.integration)])
def any_database(request: pytest.FixtureRequest) -> Database:
    """An empty database. The test runs once with each implementation: in memory and PostgreSQL."""
    fixtures = {"memory": "memory_database", "postgres": "database"}
    return request.getfixturevalue(fixtures[request.param])
