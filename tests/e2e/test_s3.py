"""Batches whose files, plans and results lie in S3, while processes die."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from batchwright.rules import ids, keys
from batchwright.rules.segments import Kind, read_index
from batchwright.settings import load
from batchwright.storage.base import Storage
from batchwright.storage.observed import Component
from batchwright.storage.opening import open_storage
from batchwright.telemetry.metrics import Metrics
from starter.stack.health import answers
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.fakes.s3 import S3Server, fresh_prefix

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@contextmanager
def dev_on(server: S3Server, prefix: str) -> Generator[Stack]:
    with dev("--workers", "2", data=None, **server.keys, **server.settings(prefix)) as stack:
        yield stack


async def settled_requests(storage: Storage, batch_id: str) -> set[str]:
    """The request ids whose final line lies in a stored segment."""
    segments = [info.key async for info in storage.list(keys.results_root("default", batch_id))]
    return {
        ids.request_id(batch_id, entry.offset)
        for key in segments
        for entry in read_index(await storage.get(key))
        if entry.kind is Kind.SETTLED
    }


async def test_workers_killed_in_mid_slice_lose_nothing_that_lies_in_s3(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = fresh_prefix()
    for name, value in s3.settings(prefix).items():
        monkeypatch.setenv(name, value)
    lines = chat_lines(MODELS, each=1_667)
    with dev_on(s3, prefix) as stack:
        async with stack.client() as client, open_storage(load(), Metrics(), Component.WORKER) as storage:
            for model in MODELS:
                await stack.faults(model=model, kind="slow", seconds=0.2, rate=1.0)
            batch = await submit(client, lines)
            await settled(client, batch.id, 1_000)
            killed = stack.kill("worker")
            kept = await settled_requests(storage, batch.id)
            assert kept

            async def replaced() -> bool:
                return len(stack.now.pids.worker) == 2 and not set(killed) & set(stack.now.pids.worker)

            await until(replaced)
            stack.kill("api")
            await until(lambda: answers(stack.now.api + "/readyz"))
            done = await ended(client, batch.id, 180)
            await check_conservation(client, done, lines)
            asked = await stack.asked()
            await storage.delete_prefix("")
        assert not any(path.is_file() for path in stack.objects.rglob("*"))
    assert done.status == "completed"
    assert {request for request in kept if asked[request] != 1} == set()
    assert max(asked.values()) <= 2
