"""The worker as a process: how it starts, what it answers, how it leaves."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from starter.stack.ports import free_port
from tests.clients import http_client
from tests.integration.clusters import cluster
from worker.drain import FORCED_EXIT

pytestmark = pytest.mark.integration


@asynccontextmanager
async def worker(tmp_path: Path, options: Sequence[str] = (), **settings: str) -> AsyncGenerator[Process]:
    chosen = {"storage_dir": str(tmp_path / "objects"), "startup_seconds": "240", **settings}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *options, "-m", "worker"),
        env={**os.environ, **{f"BATCHWRIGHT_{name.upper()}": value for name, value in chosen.items()}},
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready(port: int) -> httpx.Response:
    async with http_client(base_url=f"http://127.0.0.1:{port}") as http:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(httpx.TransportError),
            stop=stop_after_delay(240),
            wait=wait_fixed(0.1),
            reraise=True,
        ):
            with attempt:
                return await http.get("/readyz")
    raise AssertionError("unreachable: the last attempt raises")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_worker_drains_at_a_signal_and_leaves_with_0(
    number: signal.Signals, tmp_path: Path, database_url: str
) -> None:
    port = free_port()
    async with (
        cluster(is_set_up=True) as address,
        worker(
            tmp_path, temporal_address=address, database_url=database_url, metrics_port=str(port)
        ) as process,
    ):
        answer = await ready(port)
        assert (answer.status_code, answer.json()["status"]) == (200, "ok")
        process.send_signal(number)
        said, _ = await process.communicate()
    assert (process.returncode, said) == (0, b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_worker_told_to_stop_while_it_still_imports_leaves_with_0(
    number: signal.Signals, tmp_path: Path
) -> None:
    async with worker(tmp_path, options=("-X", "importtime")) as process:
        await said_by(process, "asyncio")  # one of the first things that are imported
        process.send_signal(number)
        await process.communicate()
    assert process.returncode == 0


async def test_a_worker_told_to_stop_while_it_waits_for_temporal_leaves_with_0(tmp_path: Path) -> None:
    called = asyncio.Event()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        worker(tmp_path, temporal_address=f"127.0.0.1:{port}", startup_seconds="600") as process,
    ):
        await called.wait()
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 0


async def test_a_second_signal_ends_a_worker_that_is_still_draining() -> None:
    drains = (
        "import asyncio; from worker.drain import StopSignal\n"
        "async def drain():\n"
        "    stop = StopSignal(); stop.install(); print('up', flush=True); await stop.wait()\n"
        "    print('draining', flush=True); await asyncio.Event().wait()\n"
        "asyncio.run(drain())"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", drains, stdout=PIPE)
    assert process.stdout is not None
    for word in ("up", "draining"):
        assert (await process.stdout.readline()).decode().strip() == word
        process.send_signal(signal.SIGTERM)
    assert await process.wait() == FORCED_EXIT


async def said_by(process: Process, sentence: str) -> str:
    """The first line of the log that holds it."""
    assert process.stderr is not None
    said: list[bytes] = []
    async for line in process.stderr:
        said.append(line)
        if sentence in line.decode():
            return line.decode()
    text = b"".join(said).decode()
    raise AssertionError(f"the worker ended without saying {sentence!r}, but: {text}")


async def test_a_worker_whose_storage_goes_away_takes_no_slices_and_says_so_until_it_is_back(
    tmp_path: Path, database_url: str
) -> None:
    port = free_port()
    objects, away = tmp_path / "objects", tmp_path / "away"
    async with (
        cluster(is_set_up=True) as address,
        worker(
            tmp_path, temporal_address=address, database_url=database_url, metrics_port=str(port)
        ) as process,
    ):
        assert (await ready(port)).status_code == 200
        objects.rename(away)
        objects.write_text("no directory")
        assert "storage" in await said_by(process, "slices are no longer taken")
        answer = await ready(port)
        assert (answer.status_code, answer.json()["checks"]["postgresql"]) == (503, "ok")
        assert str(objects) in answer.json()["checks"]["storage"]
        objects.unlink()
        away.rename(objects)
        await said_by(process, "slices are taken again")
        assert (await ready(port)).status_code == 200


async def test_a_postgresql_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    async with (
        cluster(is_set_up=True) as address,
        worker(tmp_path, temporal_address=address, database_url=url, startup_seconds="1") as process,
    ):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert "Traceback" not in said.decode()
    assert "PostgreSQL" in said.decode().splitlines()[-1]


async def test_a_namespace_without_search_attributes_is_one_sentence_with_the_remedy(
    tmp_path: Path, database_url: str
) -> None:
    async with (
        cluster() as address,
        worker(tmp_path, temporal_address=address, database_url=database_url, startup_seconds="1") as process,
    ):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert said.decode().splitlines()[-1] == (
        "Temporal's namespace 'default' lacks the search attributes BatchwrightStatus, BatchwrightTenant, "
        "BatchwrightModels, BatchwrightDeadline: run `batchwright setup temporal`."
    )


async def test_a_namespace_that_is_not_there_is_one_sentence_with_the_remedy(
    tmp_path: Path, database_url: str
) -> None:
    async with (
        cluster(is_set_up=True) as address,
        worker(
            tmp_path,
            temporal_address=address,
            database_url=database_url,
            temporal_namespace="nowhere",
            startup_seconds="1",
        ) as process,
    ):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert said.decode().splitlines()[-1] == (
        f"Temporal at {address} has no namespace 'nowhere': run `batchwright setup temporal`, "
        "or set BATCHWRIGHT_TEMPORAL_NAMESPACE."
    )


async def test_a_file_of_a_certificate_that_is_not_there_is_a_wrong_setting(tmp_path: Path) -> None:
    lost = tmp_path / "ca.pem"
    async with worker(tmp_path, temporal_tls_ca_file=str(lost)) as process:
        _, said = await process.communicate()
    assert process.returncode == 2
    assert said.decode().splitlines() == [
        f"BATCHWRIGHT_TEMPORAL_TLS_CA_FILE is wrong: {lost} cannot be read: No such file or directory."
    ]
