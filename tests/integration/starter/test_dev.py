"""`batchwright dev`: it starts, restarts services, stops, and rejects a second start."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import psutil
import pytest
from temporalio.client import Client

from batchwright.database.driver import connect
from batchwright.starter.embedded_stack.directory import StackInfo
from tests.clients import http_client
from tests.integration.starter.stacks import Dev, alive, pids, until, write_standins
from tests.postgres import copy_server

pytestmark = pytest.mark.integration

StartDev = Callable[..., Dev]


@pytest.fixture(scope="module")
def standins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_standins(tmp_path_factory.mktemp("standins"))


@pytest.fixture
def start_dev(tmp_path: Path, standins: Path) -> Generator[StartDev]:
    started: list[Dev] = []

    def start(*arguments: str, data: Path = tmp_path / "a stack", standins: Path = standins) -> Dev:
        started.append(Dev(data, standins, *arguments))
        return started[-1]

    yield start
    for dev in started:
        dev.stop()


@pytest.fixture
def old_database(tmp_path: Path, stopped_postgres: Path) -> None:
    """The data of an earlier PostgreSQL server, copied into the directory of `start_dev`. Creating it would
    take a second.
    """
    copy_server(stopped_postgres, tmp_path / "a stack" / "postgres")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, standins: Path) -> Generator[Dev]:
    """A running `dev` for all tests that do not break it. `printed` contains its output."""
    dev = Dev(tmp_path_factory.mktemp("running") / "a stack", standins, "--workers", "2")
    dev.ready()
    yield dev
    assert dev.stop(signal.SIGTERM) == 0


@pytest.fixture(scope="module")
def unusual(tmp_path_factory: pytest.TempPathFactory, standins: Path) -> Generator[Dev]:
    """A running `dev` with a real backend, in a directory with an unusual name."""
    parent = tmp_path_factory.mktemp("unusual") / "no 1#a"
    parent.mkdir()
    dev = Dev(parent / "50%41? ü", standins, "--backend", "http://127.0.0.1:9/v1")
    dev.ready()
    yield dev
    dev.stop()


def ended_with(dev: Dev) -> tuple[int, str, str]:
    assert dev.process.stdout is not None
    return dev.process.wait(240), dev.process.stdout.read(), dev.output().strip()


async def ask(info: StackInfo, query: str) -> str:
    """Run a query, and return PostgreSQL's status, such as `SELECT 1` for one row."""
    connection = await connect(info.postgres)
    try:
        return await connection.execute(query)
    finally:
        await connection.close()


async def test_the_addresses_that_dev_prints_are_right_and_stored_in_a_file(running: Dev) -> None:
    info = running.printed
    assert info == running.now
    assert info.pids.dev == running.process.pid
    assert len(info.pids.worker) == 2
    assert all(alive(pid) for pid in pids(info))
    assert await ask(info, "SELECT FROM migrations LIMIT 1") == "SELECT 1"
    await Client.connect(info.temporal, namespace=info.namespace)
    async with http_client() as http:
        for url in (info.api, info.ui, f"{info.simulator}/healthz"):
            assert (await http.get(url)).is_success


def test_no_other_user_reads_its_data(running: Dev) -> None:
    data = str(running.printed.data)
    paths = [os.path.join(folder, name) for folder, *names in os.walk(data) for name in chain(*names)]
    assert len(paths) > 100
    assert [path for path in (data, *paths) if is_open_to_others(path)] == []


def is_open_to_others(path: str) -> bool:
    """Return True if other users may access the file or directory. Return False if it was deleted."""
    with suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        return not (stat.S_ISLNK(mode) or stat.S_ISSOCK(mode)) and bool(mode & 0o077)
    return False


def test_its_exported_settings_satisfy_the_doctor(running: Dev) -> None:
    command = f". '{running.data}/dev.env'; exec '{sys.executable}' -m batchwright.starter doctor --json"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout
    levels = {each["part"]: each["level"] for each in json.loads(result.stdout)["findings"]}
    wanted = ("database", "tables", "backends", "temporal", "namespace")
    assert {part: levels.get(part) for part in wanted} == dict.fromkeys(wanted, "ok")
    assert levels["storage"] == "warning"  # the stand-ins for the API and the worker use no storage


def test_a_second_dev_on_the_directory_is_refused(running: Dev, start_dev: StartDev) -> None:
    info = running.now
    code, out, error_output = ended_with(start_dev("--data", str(running.data)))
    assert (code, out) == (1, "")
    assert f"(pid {running.process.pid})" in error_output
    assert running.now == info


def test_every_killed_process_is_restarted_at_the_same_address(running: Dev) -> None:
    before = running.now
    for pid in pids(before):
        os.kill(pid, signal.SIGKILL)
    until(lambda: running.output().count("is running again") >= len(pids(before)))
    until(lambda: not pids(before) & pids(running.now) and all(alive(pid) for pid in pids(running.now)))
    after = running.now
    assert after == before.model_copy(update={"pids": after.pids})


def test_all_state_is_in_its_directory_even_if_its_name_is_unusual(unusual: Dev) -> None:
    assert (unusual.data / "temporal.db").exists()
    around = unusual.data.parent.parent
    assert [path.name for path in around.iterdir() if path.name.startswith("no")] == ["no 1#a"]


def test_a_real_backend_replaces_the_simulator(unusual: Dev) -> None:
    info = unusual.printed
    assert (info.simulator, info.pids.simulator) == (None, None)
    environment = psutil.Process(info.pids.worker[0]).environ()
    assert environment["BATCHWRIGHT_BACKENDS"] == '["http://127.0.0.1:9"]'


def test_an_interrupt_stops_everything(unusual: Dev) -> None:  # the last test that needs it
    check_stop(unusual, signal.SIGINT)


@pytest.mark.usefixtures("old_database")
def test_a_hangup_stops_everything(start_dev: StartDev) -> None:
    dev = start_dev()
    dev.ready()
    check_stop(dev, signal.SIGHUP)


def check_stop(dev: Dev, number: signal.Signals) -> None:
    assert dev.stop(number) == 0
    assert not any(alive(pid) for pid in pids(dev.printed))
    assert not (dev.data / "dev.json").exists()
    assert [line.split()[:2] for line in dev.output().replace(",", "").splitlines()[-3:]] == [
        ["Stopping", "all"],
        ["Stopping", "API"],
        ["Stopping", "PostgreSQL"],
    ]


@pytest.mark.usefixtures("old_database")
def test_a_signal_during_startup_stops_the_processes_already_started(start_dev: StartDev) -> None:
    dev = start_dev()
    until(lambda: (dev.data / "logs" / "temporal.log").exists())
    started = psutil.Process(dev.process.pid).children(recursive=True)
    assert dev.stop(signal.SIGINT) == 0
    assert not any(process.is_running() for process in started)


@pytest.mark.usefixtures("old_database")
async def test_after_a_kill_dev_has_its_data_and_starts_no_process_twice(start_dev: StartDev) -> None:
    first = start_dev()
    before = first.ready()
    await ask(before, "CREATE TABLE kept AS SELECT 7")
    first.process.kill()
    first.process.wait()
    assert all(alive(pid) for pid in pids(before))
    second = start_dev()
    after = second.ready()
    assert pids(before) & pids(after) == {before.pids.postgres}  # taken over: the database never stopped
    assert not any(alive(pid) for pid in pids(before) - pids(after))
    assert await ask(after, "SELECT FROM kept") == "SELECT 1"
    second.stop()
    assert not any(alive(pid) for pid in pids(after))


def test_a_port_in_use_is_named_with_its_option(start_dev: StartDev) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, error_output = ended_with(start_dev("--ui-port", str(port)))
    assert (code, out) == (1, "")
    assert (
        error_output.splitlines()[-1]
        == f"Port {port} is in use: choose another with --ui-port (0 means any free port)."
    )


def test_an_invalid_directory_is_named(start_dev: StartDev, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, out, error_output = ended_with(start_dev("--data", str(tmp_path / "file" / "data")))
    assert (code, out) == (1, "")
    assert error_output.splitlines()[-1].endswith("Choose another directory with --data.")


def test_a_wrong_setting_is_refused_before_anything_starts(
    start_dev: StartDev, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_MAX_LINES", "many")
    dev = start_dev()
    code, out, error_output = ended_with(dev)
    assert (code, out) == (2, "")
    assert error_output.startswith("BATCHWRIGHT_MAX_LINES")
    assert not dev.data.exists()


@pytest.mark.usefixtures("old_database")
def test_a_process_that_cannot_start_is_shown_with_its_last_log_lines(
    start_dev: StartDev, tmp_path: Path
) -> None:
    standins = write_standins(tmp_path / "broken", api="raise SystemExit('the reason')")
    dev = start_dev(standins=standins)
    code, out, error_output = ended_with(dev)
    assert (code, out) == (1, "")
    assert "api ended with exit status 1" in error_output
    assert "the reason" in error_output
    assert not (dev.data / "postgres" / "data" / "postmaster.pid").exists()


@pytest.mark.usefixtures("old_database")
def test_a_process_that_dies_repeatedly_is_shown_with_its_last_log_lines(
    start_dev: StartDev, tmp_path: Path
) -> None:
    once = (
        "import os, pathlib\n"
        f"mark = pathlib.Path({str(tmp_path / 'mark')!r})\n"
        "if mark.exists(): raise SystemExit('the reason')\n"
        "mark.touch()\n"
    )
    well = (write_standins(tmp_path / "well") / "batchwright" / "api" / "__main__.py").read_text()
    dev = start_dev(standins=write_standins(tmp_path / "looping", api=once + well))
    os.kill(dev.ready().pids.api[0], signal.SIGKILL)
    until(lambda: "api keeps ending" in dev.output() and "the reason" in dev.output())
    assert alive(dev.now.pids.worker[0])
