"""`batchwright dev`: ready, kept alive, stopped, refused."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import psutil
import pytest
from temporalio.client import Client

from batchwright.database.driver import connect
from starter.stack.state import StackInfo
from tests.clients import http_client
from tests.integration.stacks import Dev, alive, pids, until, write_standins

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


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, standins: Path) -> Generator[Dev]:
    """A ready one for the tests that leave it so; what it printed is `dev.printed`."""
    dev = Dev(tmp_path_factory.mktemp("running") / "a stack", standins, "--workers", "2")
    dev.ready()
    yield dev
    assert dev.stop(signal.SIGTERM) == 0


def ended_with(dev: Dev) -> tuple[int, str, str]:
    assert dev.process.stdout is not None
    return dev.process.wait(240), dev.process.stdout.read(), dev.said().strip()


async def ask(info: StackInfo, query: str) -> str:
    """The status that PostgreSQL answers with: `SELECT 1` for one row."""
    connection = await connect(info.postgres)
    try:
        return await connection.execute(query)
    finally:
        await connection.close()


async def test_what_dev_prints_is_true_and_kept_in_a_file(running: Dev) -> None:
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


def test_its_settings_in_a_shell_are_all_that_the_doctor_wants(running: Dev) -> None:
    command = f". '{running.data}/dev.env'; exec '{sys.executable}' -m starter doctor --json"
    asked = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=300)
    assert asked.returncode == 0, asked.stdout
    levels = {each["part"]: each["level"] for each in json.loads(asked.stdout)["findings"]}
    wanted = ("database", "tables", "storage", "backends", "temporal", "namespace")
    assert {part: levels.get(part) for part in wanted} == dict.fromkeys(wanted, "ok")


def test_a_second_dev_on_the_directory_is_refused(running: Dev, start_dev: StartDev) -> None:
    info = running.now
    code, out, said = ended_with(start_dev("--data", str(running.data)))
    assert (code, out) == (1, "")
    assert f"(pid {running.process.pid})" in said
    assert running.now == info


def test_every_killed_part_is_started_again_where_it_was(running: Dev) -> None:
    before = running.now
    for pid in pids(before):
        os.kill(pid, signal.SIGKILL)
    until(lambda: running.said().count("runs again") == len(pids(before)))
    after = running.now
    assert not pids(before) & pids(after)
    assert all(alive(pid) for pid in pids(after))
    assert after == before.model_copy(update={"pids": after.pids})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_everything(start_dev: StartDev, number: signal.Signals) -> None:
    dev = start_dev()
    info = dev.ready()
    assert dev.stop(number) == 0
    assert not any(alive(pid) for pid in pids(info))
    assert not (dev.data / "dev.json").exists()
    assert [line.split()[:2] for line in dev.said().splitlines()[-3:]] == [
        ["Stopping", "what"],
        ["Stopping", "API"],
        ["Stopping", "PostgreSQL,"],
    ]


def test_a_signal_while_it_starts_stops_what_has_started(start_dev: StartDev) -> None:
    dev = start_dev()
    until(lambda: (dev.data / "logs" / "temporal.log").exists())
    started = psutil.Process(dev.process.pid).children(recursive=True)
    assert dev.stop(signal.SIGINT) == 0
    assert not any(process.is_running() for process in started)


async def test_after_a_killed_dev_all_is_there_and_nothing_runs_twice(start_dev: StartDev) -> None:
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
        code, out, said = ended_with(start_dev("--ui-port", str(port)))
    assert (code, out) == (1, "")
    assert said.splitlines()[-1] == f"Port {port} is in use: choose another with --ui-port (0: a free one)."


def test_a_directory_that_cannot_be_is_named(start_dev: StartDev, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, out, said = ended_with(start_dev("--data", str(tmp_path / "file" / "data")))
    assert (code, out) == (1, "")
    assert said.splitlines()[-1].endswith("Choose another directory with --data.")


def test_all_state_is_in_its_directory_whatever_that_is_called(start_dev: StartDev, tmp_path: Path) -> None:
    parent = tmp_path / "no 1#a"
    parent.mkdir()
    dev = start_dev(data=parent / "50%41? ü")
    dev.ready()
    assert (dev.data / "temporal.db").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("no")] == ["no 1#a"]


def test_a_wrong_setting_is_refused_before_anything_starts(
    start_dev: StartDev, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_MAX_LINES", "many")
    dev = start_dev()
    code, out, said = ended_with(dev)
    assert (code, out) == (2, "")
    assert said.startswith("BATCHWRIGHT_MAX_LINES")
    assert not dev.data.exists()


def test_a_part_that_cannot_start_is_shown_with_its_last_words(start_dev: StartDev, tmp_path: Path) -> None:
    standins = write_standins(tmp_path / "broken", api="raise SystemExit('the reason')")
    dev = start_dev(standins=standins)
    code, out, said = ended_with(dev)
    assert (code, out) == (1, "")
    assert "api ended with exit status 1" in said
    assert "the reason" in said
    assert not (dev.data / "postgres" / "data" / "postmaster.pid").exists()


def test_a_part_that_dies_again_and_again_is_shown_with_its_last_words(
    start_dev: StartDev, tmp_path: Path
) -> None:
    once = (
        "import os, pathlib\n"
        f"mark = pathlib.Path({str(tmp_path / 'mark')!r})\n"
        "if mark.exists(): raise SystemExit('the reason')\n"
        "mark.touch()\n"
    )
    well = (write_standins(tmp_path / "well") / "api" / "__main__.py").read_text()
    dev = start_dev(standins=write_standins(tmp_path / "looping", api=once + well))
    os.kill(dev.ready().pids.api[0], signal.SIGKILL)
    until(lambda: "api keeps ending" in dev.said() and "the reason" in dev.said())
    assert alive(dev.now.pids.worker[0])


def test_a_real_backend_takes_the_simulators_place(start_dev: StartDev) -> None:
    info = start_dev("--backend", "http://127.0.0.1:9/v1").ready()
    assert (info.simulator, info.pids.simulator) == (None, None)
    told = psutil.Process(info.pids.worker[0]).environ()
    assert told["BATCHWRIGHT_BACKENDS"] == '["http://127.0.0.1:9"]'
