"""The API process: start, stop, and dependencies that are unavailable."""

import asyncio
import os
import signal
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from batchwright.contracts.api_objects.openai import FileObject
from batchwright.rules.backends.registry_changes import registry_fingerprint
from batchwright.settings import load
from batchwright.settings.registry_file import read_registry
from batchwright.starter.commands.operations.config import configuration
from batchwright.starter.embedded_stack.ports import free_port
from tests.fakes.api import LINE, error_of, read
from tests.forked_process import ForkedProcess
from tests.integration.starter.stacks import until
from tests.integration.temporal.clusters import cluster

pytestmark = pytest.mark.integration
MIB = 1024 * 1024
_IMPORTS = ("batchwright.api.main",)


class Listens(BaseModel):
    """The log line that contains the port."""

    message: str
    port: int


def environment(tmp_path: Path, **settings: str) -> dict[str, str]:
    """Return the environment of an API process without Temporal, independent of the test's environment."""
    chosen = {
        **({} if "registry" in settings else {"backends": '["http://127.0.0.1:9"]'}),
        "storage_dir": str(tmp_path / "objects"),
        "temporal_address": f"127.0.0.1:{free_port()}",
        "database_url": f"postgresql://nobody@127.0.0.1:{free_port()}/none",
        "api_port": "0",
        "log_format": "json",
        **settings,
    }
    return {**os.environ, **{f"BATCHWRIGHT_{name.upper()}": value for name, value in chosen.items()}}


def ended(tmp_path: Path, **settings: str) -> tuple[int, list[str]]:
    """Run an API process that cannot start. Return its exit code and the lines on stderr."""
    with ForkedProcess(("batchwright.api",), _IMPORTS, environment(tmp_path, **settings)) as process:
        output, errors = process.communicate()
        assert output == ""
        return process.wait(), errors.splitlines()


@contextmanager
def running(
    tmp_path: Path, program: Sequence[str] = ("batchwright.api",), **settings: str
) -> Generator[tuple[ForkedProcess, httpx.Client]]:
    with ForkedProcess(program, _IMPORTS, environment(tmp_path, **settings)) as process:
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{_port(process)}", trust_env=False, timeout=240
            ) as client:
                yield process, client
        finally:
            process.kill()


def _port(process: ForkedProcess) -> int:
    for line in process.stderr:
        try:
            listens = Listens.model_validate_json(line)
        except ValidationError:
            continue
        return listens.port
    raise AssertionError(f"the API ended with {process.wait()}")


def objects(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "objects").rglob("*") if path.is_file()]


def test_a_port_in_use_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, [line] = ended(tmp_path, api_port=str(port))
    assert code == 1
    assert (
        line == f"The API cannot listen on 127.0.0.1:{port} (BATCHWRIGHT_API_PORT): Address already in use."
    )


def test_a_signal_ends_the_api_while_it_waits_for_its_database(tmp_path: Path) -> None:
    settings = environment(tmp_path, log_level="DEBUG")
    with ForkedProcess(("batchwright.api",), _IMPORTS, settings) as process:
        process.stderr.readline()  # logging is set up
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


WITHOUT_TEMPORAL = {"background_tasks": "ok", "postgresql": "ok", "temporal": "unavailable", "storage": "ok"}


def test_the_api_serves_without_temporal_and_ends_cleanly_on_a_signal(
    tmp_path: Path, database_url: str
) -> None:
    with running(tmp_path, database_url=database_url) as (process, client):
        file = {"file": ("a.jsonl", LINE)}
        uploaded = read(client.post("/v1/files", files=file, data={"purpose": "batch"}), FileObject)
        content = client.get(f"/v1/files/{uploaded.id}/content")
        until(lambda: client.get("/readyz").json()["checks"] == WITHOUT_TEMPORAL)
        body = {"input_file_id": uploaded.id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
        created = client.post("/v1/batches", json=body)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    assert content.content == LINE
    assert (created.status_code, error_of(created).type) == (503, "server_error")


LOOPS = {
    "temporal_connection": "batchwright.temporal:TemporalConnection.run",
    "registry": "batchwright.inference.registry.backend_registry:BackendRegistry.run",
    "temporal_readiness": "batchwright.api.lifespan:log_until_ready",
    "batch_events": "batchwright.api.services.batches.progress_events:BatchEvents.run",
}


@pytest.mark.parametrize("is_steady", [False, True])
def test_a_failing_background_loop_makes_the_api_unready_until_it_runs_again(
    is_steady: bool, tmp_path: Path, database_url: str
) -> None:
    steady = "0.05" if is_steady else "3600"
    broken = ("tests.integration.broken_loops", "0.01", steady, "api", *LOOPS.values())
    wanted = "ok" if is_steady else "unavailable"
    with running(tmp_path, broken, database_url=database_url) as (_, client):
        counts = {f'batchwright_background_task_failures_total{{task="{loop}"}} 1.0' for loop in LOOPS}
        until(lambda: counts <= set(client.get("/metrics").text.splitlines()))
        until(lambda: client.get("/readyz").json()["checks"]["background_tasks"] == wanted)
        assert client.get("/healthz").status_code == 200


def test_the_api_reports_the_fingerprint_of_its_registry(tmp_path: Path, database_url: str) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("models: {llama: {backends: [{url: 'http://127.0.0.1:9'}]}}")
    of_the_file = registry_fingerprint(read_registry(file, tmp_path).models, [], [])
    with running(tmp_path, database_url=database_url, registry=str(file)) as (_, client):
        until(lambda: "batchwright_registry_info{" in client.get("/metrics").text)
        shown = client.get("/metrics").text.splitlines()
    assert f'batchwright_registry_info{{fingerprint="{of_the_file}"}} 1.0' in shown


def test_the_api_reports_the_fingerprint_that_config_show_prints(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"database_url": database_url, "temporal_address": f"127.0.0.1:{free_port()}"}
    for name, value in environment(tmp_path, **chosen).items():
        monkeypatch.setenv(name, value)
    expected = configuration(load()).fingerprint
    with running(tmp_path, **chosen) as (_, client):
        shown = client.get("/metrics").text.splitlines()
    assert f'batchwright_settings_info{{fingerprint="{expected}"}} 1.0' in shown


def test_a_client_that_hangs_up_mid_upload_leaves_nothing(tmp_path: Path, database_url: str) -> None:
    head = (
        b"POST /v1/files HTTP/1.1\r\nHost: api\r\nContent-Length: 1000000\r\n"
        b"Content-Type: multipart/form-data; boundary=cut\r\n\r\n"
        b'--cut\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )
    with running(tmp_path, database_url=database_url) as (process, client):
        with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as connection:
            connection.sendall(head + LINE * 1000)
        assert client.get("/v1/files").json()["data"] == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    assert objects(tmp_path) == []


def test_a_client_that_sends_all_of_a_too_large_file_still_receives_the_error(
    tmp_path: Path, database_url: str
) -> None:
    limits = {"max_batch_file_bytes": str(MIB), "max_file_bytes": str(MIB)}
    with running(tmp_path, database_url=database_url, **limits) as (_, client):
        file = {"file": ("a.jsonl", LINE * (20 * MIB // len(LINE)))}
        answer = client.post("/v1/files", files=file, data={"purpose": "batch"})
        assert client.get("/healthz").status_code == 200
    assert (answer.status_code, error_of(answer).param) == (413, "file")
    assert objects(tmp_path) == []


def test_a_missing_key_file_is_a_settings_error(tmp_path: Path, database_url: str) -> None:
    lost = str(tmp_path / "api-key")
    code, lines = ended(tmp_path, database_url=database_url, temporal_api_key_file=lost)
    assert code == 2
    assert lines[-1] == (
        f"BATCHWRIGHT_TEMPORAL_API_KEY_FILE is wrong: {lost} cannot be read: No such file or directory."
    )


async def test_a_namespace_that_is_not_set_up_is_reported_at_startup_and_by_readyz(
    tmp_path: Path, database_url: str
) -> None:
    async with cluster() as address:
        with running(tmp_path, database_url=database_url, temporal_address=address) as (process, client):
            message = next(line for line in process.stderr if "Temporal is not ready" in line)
            ready = await asyncio.to_thread(client.get, "/readyz")
    assert "lacks the search attributes BatchwrightStatus" in message
    assert "run `batchwright setup temporal`" in message
    assert ready.status_code == 503
    assert ready.json()["checks"]["temporal"] == "unavailable"
