"""The program docs/explanation/engine_in_miniature.py runs against the simulator. It is killed and started
again.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from batchwright.starter.embedded_stack.ports import free_port
from tests.constants import python_path
from tests.integration.starter.stacks import until

pytestmark = pytest.mark.integration
FOLDER = Path(__file__).parents[2] / "docs" / "explanation"
# Its lease is longer than a busy machine may delay it.
ATTEMPT = """
import asyncio, pathlib, sys
import engine_in_miniature as engine

engine.LEASE_SECONDS = 600.0
lines, store, url = sys.argv[1:]
sys.exit(0 if asyncio.run(engine.run_slice(pathlib.Path(lines), pathlib.Path(store), url)) else 1)
"""
LINES = 400
REJECTED = {"user": "sim:400"}
OVERLOADED_ONCE = {"user": "sim:503*2"}
BROKEN = {"user": "sim:500"}
# Has no answer when it is first sent, so the first attempt is not done when it is killed.
HELD = {"user": "sim:hang*1"}


@pytest.fixture
def backend() -> Generator[httpx.Client]:
    port = free_port()
    options = ("--port", str(port), "--models", "m", "--latency-ms", "250", "--jitter", "0.5")
    with subprocess.Popen([sys.executable, "-m", "batchwright.simulator", *options]) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
                until(lambda: _answers(client))
                yield client
        finally:
            process.kill()


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").is_success
    except httpx.TransportError:
        return False


def _line(number: int) -> str:
    more = {0: REJECTED, 1: OVERLOADED_ONCE, 2: BROKEN, 3: HELD}.get(number, {})
    messages = [{"role": "user", "content": f"line {number}"}]
    return json.dumps({"custom_id": f"line-{number}", "body": {"model": "m", "messages": messages, **more}})


def _stored(store: Path) -> dict[str, int]:
    """Return the status of each stored result by `custom_id`. Fail if a line has two results."""
    records = [
        json.loads(record) for path in store.glob("*.segment") for record in path.read_text().splitlines()
    ]
    statuses = {record["custom_id"]: record["status"] for record in records}
    assert len(statuses) == len(records)
    return statuses


def test_every_line_gets_one_result_and_no_stored_result_is_requested_again_after_a_kill(
    tmp_path: Path, backend: httpx.Client
) -> None:
    lines, store = tmp_path / "lines.jsonl", tmp_path / "store"
    lines.write_text("".join(f"{_line(number)}\n" for number in range(LINES)))
    store.mkdir()
    command = [sys.executable, "-c", ATTEMPT, str(lines), str(store), str(backend.base_url)]
    environment = {**os.environ, "PYTHONPATH": python_path(str(FOLDER))}
    with subprocess.Popen(command, env=environment) as first:
        until(lambda: len(_stored(store)) >= LINES // 4)
        first.send_signal(signal.SIGKILL)
    before = _stored(store)
    assert "line-3" not in before
    os.utime(store / "lease", (0, 0))  # it has expired
    until(lambda: backend.get("/admin/ledger").json()["in_flight"] == 0)
    earlier = backend.get("/admin/ledger").json()["requests"]
    assert subprocess.run(command, env=environment, timeout=300).returncode == 0
    after = _stored(store)
    assert after == {f"line-{number}": {0: 400, 2: 500}.get(number, 200) for number in range(LINES)}
    requests = backend.get("/admin/ledger").json()["requests"]
    retries = sum(2 for name in ("line-1", "line-2") if name not in before)
    assert requests - earlier <= LINES - len(before) + retries


async def test_a_lease_that_its_owner_renews_while_another_attempt_waits_is_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    engine = import_module("engine_in_miniature")
    lease = tmp_path / "lease"
    lease.write_text("owner")
    owners: list[str] = []

    async def sleep(seconds: float) -> None:
        """Do not wait. The owner renews the lease once. After that, the lease expires."""
        owners.append(lease.read_text())
        renewed = time.time() + seconds if len(owners) == 1 else 0.0
        os.utime(lease, (renewed, renewed))

    monkeypatch.setattr(engine, "asyncio", SimpleNamespace(sleep=sleep))
    await engine.Lease(tmp_path).acquire()
    assert owners == ["owner", "owner"]
    assert lease.read_text() != "owner"
