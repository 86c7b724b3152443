"""The worker as a process: start, health, shutdown."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from batchwright.starter.embedded_stack.ports import free_port
from batchwright.worker.shutdown import FORCED_EXIT_CODE
from tests.clients import http_client
from tests.constants import with_constants
from tests.forked_process import ForkedProcess
from tests.integration.temporal.clusters import cluster

pytestmark = pytest.mark.integration


def environment(tmp_path: Path, startup_seconds: str, settings: Mapping[str, str]) -> dict[str, str]:
    chosen = {
        "backends": '["http://127.0.0.1:9"]',
        "storage_dir": str(tmp_path / "objects"),
        **settings,
    }
    return {
        **os.environ,
        **with_constants(startup_seconds=float(startup_seconds)),
        **{f"BATCHWRIGHT_{name.upper()}": value for name, value in chosen.items()},
    }


@asynccontextmanager
async def worker(
    tmp_path: Path,
    program: Sequence[str] = ("batchwright.worker",),
    *,
    startup_seconds: str = "240",
    **settings: str,
) -> AsyncGenerator[ForkedProcess]:
    variables = environment(tmp_path, startup_seconds, settings)
    process = await asyncio.to_thread(ForkedProcess, program, ("batchwright.worker.main",), variables)
    with process:
        try:
            yield process
        finally:
            process.kill()


async def ended(process: ForkedProcess) -> tuple[str, str]:
    """Wait until the process has ended, and return its output: stdout, stderr."""
    return await asyncio.to_thread(process.communicate)


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


async def ready_as(port: int, status: int) -> dict[str, str]:
    """Wait until /readyz has the status `status`, and return its checks.

    On a busy machine, a check may fail only because it is late.
    """
    while (answer := await ready(port)).status_code != status:
        await asyncio.sleep(0.1)
    return answer.json()["checks"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_worker_drains_at_a_signal_and_exits_with_0(
    number: signal.Signals, tmp_path: Path, database_url: str
) -> None:
    port = free_port()
    async with (
        cluster(is_set_up=True) as address,
        worker(
            tmp_path, temporal_address=address, database_url=database_url, metrics_port=str(port)
        ) as process,
    ):
        assert set((await ready_as(port, 200)).values()) == {"ok"}
        process.send_signal(number)
        output, _ = await ended(process)
    assert (process.returncode, output) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_worker_signalled_during_its_imports_exits_with_0(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = (sys.executable, "-X", "importtime", "-m", "batchwright.worker")
    process = await asyncio.create_subprocess_exec(
        *command, env=environment(tmp_path, "240", {}), stdout=DEVNULL, stderr=PIPE
    )
    assert process.stderr is not None
    while b"asyncio" not in await process.stderr.readline():  # one of the first imports
        assert not process.stderr.at_eof()
    process.send_signal(number)
    await process.communicate()
    assert process.returncode == 0


async def test_a_worker_signalled_while_it_waits_for_temporal_exits_with_0(tmp_path: Path) -> None:
    called = asyncio.Event()

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(stay_silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        worker(tmp_path, temporal_address=f"127.0.0.1:{port}") as process,
    ):
        await called.wait()
        process.send_signal(signal.SIGTERM)
        await ended(process)
    assert process.returncode == 0


async def test_a_second_signal_ends_a_worker_that_is_still_draining() -> None:
    drains = (
        "import asyncio; from batchwright.worker.shutdown import ShutdownSignal\n"
        "async def drain():\n"
        "    stop = ShutdownSignal(); stop.install(); print('up', flush=True); await stop.wait()\n"
        "    print('draining', flush=True); await asyncio.Event().wait()\n"
        "asyncio.run(drain())"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", drains, stdout=PIPE)
    assert process.stdout is not None
    for word in ("up", "draining"):
        assert (await process.stdout.readline()).decode().strip() == word
        process.send_signal(signal.SIGTERM)
    assert await process.wait() == FORCED_EXIT_CODE


async def said_by(process: ForkedProcess, sentence: str) -> str:
    """Return the first line of the log that contains the text `sentence`."""
    output: list[str] = []
    while line := await asyncio.to_thread(process.stderr.readline):
        output.append(line)
        if sentence in line:
            return line
    raise AssertionError(f"the worker ended without saying {sentence!r}, but: {''.join(output)}")


async def test_a_worker_whose_storage_is_unavailable_accepts_no_slices_and_reports_it(
    tmp_path: Path, database_url: str
) -> None:
    port = free_port()
    objects, moved = tmp_path / "objects", tmp_path / "away"
    async with (
        cluster(is_set_up=True) as address,
        worker(
            tmp_path, temporal_address=address, database_url=database_url, metrics_port=str(port)
        ) as process,
    ):
        await ready_as(port, 200)
        objects.rename(moved)
        objects.write_text("no directory")
        assert "storage" in await said_by(process, "slices are not accepted")
        while (checks := await ready_as(port, 503))["postgresql"] != "ok":
            await asyncio.sleep(0.1)
        assert str(objects) in checks["storage"]
        objects.unlink()
        moved.rename(objects)
        await said_by(process, "slices are accepted again")
        await ready_as(port, 200)


LOOPS = {
    "temporal_connection": "batchwright.temporal:TemporalConnection.run",
    "limit_share_updater": "batchwright.worker.limit_share_updater:LimitShareUpdater.run",
    "registry": "batchwright.inference.registry.backend_registry:BackendRegistry.run",
    "progress": "batchwright.activities.services.progress_writer:ProgressReporter.run",
    "dependencies": "batchwright.worker.dependency_checks:DependencyMonitor.run",
    "worker_stats": "batchwright.worker.process:_publish_stats",
    "permissions": "batchwright.activities.services.send_authorization:CachedPermissions.run",
    "callbacks": "batchwright.activities.services.backend_job_callbacks:CallbackWatch.run",
    "pollers": "batchwright.worker.pollers:PollerSupervisor.run",
    "rate_limits": "batchwright.worker.task_queue_rate_limits:RateLimitSync.run",
    "fleet_metrics": "batchwright.worker.control_tasks.fleet_metrics:FleetMetricsCollector.run",
    "waiting_reasons": "batchwright.worker.control_tasks.fleet_waiting_reasons:WaitingReasonMonitor.run",
}


async def test_a_worker_whose_background_loops_fail_is_unready_and_names_them(
    tmp_path: Path, database_url: str
) -> None:
    port = free_port()
    broken = ("tests.integration.broken_loops", "0.01", "3600", "worker", *LOOPS.values())
    settings = {"database_url": database_url, "metrics_port": str(port), "log_format": "json"}
    async with (
        cluster(is_set_up=True) as address,
        worker(tmp_path, program=broken, temporal_address=address, **settings) as process,
    ):
        seen = set[str]()
        while seen != LOOPS.keys():
            line = json.loads(await said_by(process, "a background task ended and is restarted"))
            seen.add(line["task"])
        answer = await ready(port)
        async with http_client(base_url=f"http://127.0.0.1:{port}") as http:
            metrics = (await http.get("/metrics")).text.splitlines()
        process.send_signal(signal.SIGTERM)
        await ended(process)
    assert answer.status_code == 503
    assert set(answer.json()["checks"]["background_tasks"].split("; ")) == {
        f"{loop}: ValueError: injected" for loop in LOOPS
    }
    assert {f'batchwright_background_task_failures_total{{task="{loop}"}} 1.0' for loop in LOOPS} <= set(
        metrics
    )
    assert process.returncode == 0


async def test_a_worker_whose_background_loops_failed_once_is_ready_again(
    tmp_path: Path, database_url: str
) -> None:
    port = free_port()
    broken = ("tests.integration.broken_loops", "0.01", "0.05", "worker", *LOOPS.values())
    settings = {"database_url": database_url, "metrics_port": str(port), "log_format": "json"}
    async with (
        cluster(is_set_up=True) as address,
        worker(tmp_path, program=broken, temporal_address=address, **settings) as process,
    ):
        seen = set[str]()
        while seen != LOOPS.keys():
            seen.add(json.loads(await said_by(process, "a background task runs again"))["task"])
        while (await ready(port)).json()["checks"]["background_tasks"] != "ok":
            await asyncio.sleep(0.1)


async def test_a_worker_whose_poller_fails_ends_with_its_error(tmp_path: Path, database_url: str) -> None:
    broken = (
        "tests.integration.broken_loops",
        "1",
        "30",
        "worker",
        "batchwright.worker.pollers:ReconnectingWorker.run",
    )
    async with (
        cluster(is_set_up=True) as address,
        worker(tmp_path, program=broken, temporal_address=address, database_url=database_url) as process,
    ):
        _, output = await ended(process)
    assert process.returncode == 1
    assert "ValueError: injected" in output


async def test_an_unreachable_postgresql_is_reported_in_one_sentence(tmp_path: Path) -> None:
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    async with (
        cluster(is_set_up=True) as address,
        worker(tmp_path, temporal_address=address, database_url=url, startup_seconds="1") as process,
    ):
        _, output = await ended(process)
    assert process.returncode == 1
    assert "Traceback" not in output
    assert "PostgreSQL" in output.splitlines()[-1]


async def test_a_namespace_without_search_attributes_is_reported_with_the_remedy(
    tmp_path: Path, database_url: str
) -> None:
    async with (
        cluster() as address,
        worker(tmp_path, temporal_address=address, database_url=database_url, startup_seconds="1") as process,
    ):
        _, output = await ended(process)
    assert process.returncode == 1
    assert output.splitlines()[-1] == (
        "Temporal's namespace 'default' lacks the search attributes BatchwrightStatus, BatchwrightTenant, "
        "BatchwrightModels, BatchwrightDeadline: run `batchwright setup temporal`."
    )


async def test_a_missing_namespace_is_reported_with_the_remedy(tmp_path: Path, database_url: str) -> None:
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
        _, output = await ended(process)
    assert process.returncode == 1
    assert output.splitlines()[-1] == (
        f"Temporal at {address} has no namespace 'nowhere': run `batchwright setup temporal`, "
        "or set BATCHWRIGHT_TEMPORAL_NAMESPACE."
    )


async def test_a_missing_certificate_file_is_a_settings_error(tmp_path: Path) -> None:
    lost = tmp_path / "ca.pem"
    async with worker(tmp_path, temporal_tls_ca_file=str(lost)) as process:
        _, output = await ended(process)
    assert process.returncode == 2
    assert output.splitlines() == [
        f"BATCHWRIGHT_TEMPORAL_TLS_CA_FILE is wrong: {lost} cannot be read: No such file or directory."
    ]
