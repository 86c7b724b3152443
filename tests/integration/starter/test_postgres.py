"""The embedded PostgreSQL: it starts, is used again, recovers, and rejects wrong starts."""

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import psutil
import pytest

from batchwright.database.driver import connect
from batchwright.starter.embedded_stack.errors import StackError
from batchwright.starter.embedded_stack.postgres.server_process import EmbeddedPostgres
from tests.integration.starter.stacks import until
from tests.postgres import copy_server

pytestmark = pytest.mark.integration

MakeServer = Callable[..., EmbeddedPostgres]


@pytest.fixture
def root() -> Generator[Path]:
    """The directory of the servers, which does not exist yet. Its path contains a space and an umlaut."""
    folder = Path(tempfile.mkdtemp())
    yield folder / "a störe"
    shutil.rmtree(folder)


@pytest.fixture
def make_new_server(root: Path) -> Generator[MakeServer]:
    """A function that creates servers in the same directory, which is empty."""
    servers: list[EmbeddedPostgres] = []

    def make(port: int | None = None) -> EmbeddedPostgres:
        servers.append(EmbeddedPostgres(root, port))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def make_server(root: Path, stopped_postgres: Path, make_new_server: MakeServer) -> MakeServer:
    """A function that creates servers in the same directory. An earlier server has left its data there."""
    copy_server(stopped_postgres, root)
    return make_new_server


async def ask(server: EmbeddedPostgres, query: str) -> str:
    """Run a query, and return PostgreSQL's status, such as `SELECT 1` for one row."""
    connection = await connect(server.dsn)
    try:
        return await connection.execute(query)
    finally:
        await connection.close()


async def test_committed_rows_survive_sigkill_and_the_port_stays(make_server: MakeServer) -> None:
    server = make_server().start()
    await ask(server, "CREATE TABLE kept AS SELECT 1")
    port = server.port
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not server.is_alive())
    server.start()
    assert server.port == port
    assert await ask(server, "SELECT FROM kept") == "SELECT 1"


def test_a_stopped_server_leaves_no_zombie(make_server: MakeServer) -> None:
    server = make_server().start()
    pid = server.pid
    server.stop()
    assert not psutil.pid_exists(pid)


def test_a_server_that_another_starter_revived_is_alive(make_server: MakeServer) -> None:
    first = make_server().start()
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: not first.is_alive())
    second = make_server().start()
    assert first.start().pid == second.pid
    assert first.is_alive()


def test_a_killed_server_is_restarted_even_if_its_state_was_not_checked(make_server: MakeServer) -> None:
    server = make_server().start()
    killed = server.pid
    os.kill(killed, signal.SIGKILL)
    until(lambda: psutil.Process(killed).status() == psutil.STATUS_ZOMBIE)
    assert server.start().is_alive()
    assert not psutil.pid_exists(killed)


def test_a_running_server_is_adopted_and_left_running(make_server: MakeServer) -> None:
    first = make_server().start()
    second = make_server().start()
    assert second.running is not None
    assert (second.pid, second.port, second.running.ours) == (first.pid, first.port, False)
    second.stop()
    assert first.is_alive()


def test_an_adopted_server_is_stopped_on_request(make_server: MakeServer) -> None:
    first = make_server().start()
    make_server().start().stop(adopted_too=True)
    assert not first.is_alive()


async def test_no_connection_is_accepted_without_the_password(make_server: MakeServer) -> None:
    server = make_server().start()
    with pytest.raises(Exception, match="password"):
        await connect(f"postgresql://postgres:guess@127.0.0.1:{server.port}/postgres")


def test_the_data_of_another_major_version_is_refused(make_server: MakeServer) -> None:
    server = make_server().start()
    server.stop()
    (server.data / "PG_VERSION").write_text("16\n")
    with pytest.raises(
        StackError, match=r"created by PostgreSQL 16, but the binaries are \d+: dump with the old"
    ):
        server.start()


def test_an_incomplete_database_cluster_is_created_again(make_new_server: MakeServer) -> None:
    server = make_new_server()
    (server.root / "data.init" / "base").mkdir(parents=True)
    assert server.start().is_alive()


def test_a_taken_port_is_named(make_server: MakeServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=f"cannot listen on port {port}: it is in use"):
            make_server(port=port).start()


def test_the_directory_is_closed_to_others(make_new_server: MakeServer) -> None:
    server = make_new_server().start()
    assert server.root.stat().st_mode & 0o777 == 0o700
    assert (server.root / "password").stat().st_mode & 0o777 == 0o600


def test_missing_binaries_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PG_BIN_DIR", str(tmp_path))
    with pytest.raises(StackError, match="There is no postgres in"):
        EmbeddedPostgres(tmp_path / "root").start()
