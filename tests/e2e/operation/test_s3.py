"""Batches whose files, plans and results are stored in S3, while processes are killed."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

import httpx
import pytest

from batchwright.contracts.api_objects.schedules import ScheduleObject
from batchwright.rules import ids
from batchwright.rules.results.segment_format import RecordKind
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import load
from batchwright.starter.embedded_stack.service_commands import is_reachable
from batchwright.storage.base import Storage
from batchwright.storage.factory import open_storage
from batchwright.storage.observed import StorageComponent
from batchwright.telemetry.metrics import Metrics
from tests.clients import http_client
from tests.e2e.batches import CHAT, chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.fakes.s3 import S3Server, fresh_prefix
from tests.segments import read_index

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@contextmanager
def dev_on(server: S3Server, prefix: str, **more: str) -> Generator[Stack]:
    # A worker on a busy machine must not count as lost: its lines would be sent again.
    settings = {
        "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "30",
        **server.keys,
        **server.settings(prefix),
        **more,
    }
    with dev("--workers", "2", data=None, **settings) as stack:
        yield stack


async def settled_requests(storage: Storage, batch_id: str) -> set[str]:
    """Return the ids of all requests whose final result is stored."""
    segments = [info.key async for info in storage.list(object_keys.results_root("default", batch_id))]
    return {
        ids.request_id(batch_id, entry.offset)
        for key in segments
        for entry in read_index(await storage.get(key))
        if entry.kind is RecordKind.SETTLED
    }


async def test_workers_killed_during_a_slice_lose_nothing_stored_in_s3(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = fresh_prefix()
    for name, value in s3.settings(prefix).items():
        monkeypatch.setenv(name, value)
    lines = chat_lines(MODELS, each=1_667)
    with dev_on(s3, prefix) as stack:
        async with (
            stack.client() as client,
            open_storage(load(), Metrics(), StorageComponent.WORKER) as storage,
        ):
            await stack.faults(model=MODELS[0], kind="hold")  # so that no kill comes after the end
            for model in MODELS[1:]:
                await stack.faults(model=model, kind="slow", seconds=0.2, rate=1.0)
            batch = await submit(client, lines)
            await settled(client, batch.id, 1_000)
            killed = stack.kill("worker")
            settled_before = await settled_requests(storage, batch.id)
            assert settled_before

            async def replaced() -> bool:
                return len(stack.now.pids.worker) == 2 and not set(killed) & set(stack.now.pids.worker)

            await until(replaced)
            stack.kill("api")
            await until(lambda: is_reachable(stack.now.api + "/readyz"))
            await stack.heal()
            done = await ended(client, batch.id)
            await check_conservation(client, done, lines)
            requests = await stack.requests_by_id()
            await storage.delete_prefix("")
        assert not any(path.is_file() for path in stack.objects.rglob("*"))
    assert done.status == "completed"
    assert {request for request in settled_before if requests[request] != 1} == set()
    assert max(requests.values()) <= 2


async def test_a_batch_reads_an_object_and_its_files_arrive_in_a_bucket_although_workers_are_killed(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, data = fresh_prefix(), fresh_prefix()
    for name, value in s3.settings(data).items():
        monkeypatch.setenv(name, value)
    location, lines = f"s3://{s3.bucket}/{data}/", chat_lines(MODELS, each=20)
    locations = {"default": {"read": [location], "write": [location]}}
    with dev_on(s3, prefix, BATCHWRIGHT_DATA_LOCATIONS=json.dumps(locations)) as stack:
        async with (
            stack.client() as client,
            open_storage(load(), Metrics(), StorageComponent.WORKER) as bucket,
        ):
            await bucket.put("in/lines.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
            created = await client.batches.create(
                input_file_id=f"{location}in/lines.jsonl",
                endpoint=CHAT,
                completion_window="24h",
                extra_body={"x_batchwright": {"output_location": f"{location}out"}},
            )
            batch = await ended(client, created.id)
            stack.kill("worker")

            async def is_written() -> bool:
                shown = (await client.batches.retrieve(batch.id)).model_extra or {}
                return shown["x_batchwright"]["output_location"]["state"] == "written"

            await until(is_written)
            assert batch.status == "completed"
            assert batch.output_file_id is not None
            output = await client.files.content(batch.output_file_id)
            assert await bucket.get(f"out/{batch.id}_output.jsonl") == output.content
            await bucket.delete_prefix("")


async def test_each_batch_of_a_schedule_reads_its_object_again_although_processes_are_killed(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, data = fresh_prefix(), fresh_prefix()
    for name, value in s3.settings(data).items():
        monkeypatch.setenv(name, value)
    location = f"s3://{s3.bucket}/{data}/"
    locations = {"default": {"read": [location], "write": [location]}}
    with dev_on(s3, prefix, BATCHWRIGHT_DATA_LOCATIONS=json.dumps(locations)) as stack:
        async with (
            stack.client() as client,
            http_client(base_url=f"{stack.now.api}/v1/x") as http,
            open_storage(load(), Metrics(), StorageComponent.WORKER) as bucket,
        ):
            batch = {"input_file_id": f"{location}daily.jsonl", "endpoint": CHAT, "completion_window": "1h"}
            made = await http.post("/schedules", json={"cron": "30 2 1 7 *", "batch": batch})
            schedule = ScheduleObject.model_validate_json(made.raise_for_status().content)
            runs: tuple[tuple[int, Literal["worker", "api"]], ...] = ((5, "worker"), (8, "api"))
            for run, (each, killed) in enumerate(runs, 1):
                lines = chat_lines(MODELS, each=each)
                await bucket.put("daily.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
                batch_id = await run_of(http, schedule.id, run)
                stack.kill(killed)
                await until(lambda: is_reachable(stack.now.api + "/readyz"))
                done = await ended(client, batch_id)
                assert done.status == "completed"
                await check_conservation(client, done, lines)
            await bucket.delete_prefix("")


async def run_of(http: httpx.AsyncClient, id: str, runs: int) -> str:
    """Trigger a schedule, wait until it has this number of runs, and return the id of the last batch."""
    found: list[ScheduleObject] = []

    async def is_triggered() -> bool:
        """Trigger the schedule. Return True if the trigger is accepted: it is refused until the last run has
        ended.
        """
        return (await http.post(f"/schedules/{id}/trigger")).is_success

    async def has_run() -> bool:
        found.append(ScheduleObject.model_validate_json((await http.get(f"/schedules/{id}")).content))
        return len(found[-1].runs) == runs

    await until(is_triggered)
    await until(has_run)
    batch_id = found[-1].runs[0].batch_id
    assert batch_id is not None
    return batch_id
