"""Event streams of a real API process with a real PostgreSQL."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.database.database import Database
from batchwright.rules.ids import new_batch_id
from tests.constants import constants
from tests.integration.api.test_process import running
from tests.integration.database.rows import after, an_order, an_outcome, slice_progress

pytestmark = pytest.mark.integration
TENANT = "default"


class Events:
    """An iterator over the events of a stream. It yields the fields of each event."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[dict[str, str]]:
        return self

    def __next__(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        for line in self._lines:
            name, _, value = line.partition(": ")
            if line and name:  # no comment
                fields[name] = value
            elif fields:
                return fields
        raise StopIteration


def batch_in(event: dict[str, str]) -> BatchObject:
    return BatchObject.model_validate_json(event["data"])


async def started(database: Database, *models: ModelCounts) -> str:
    """Create a batch in progress, and return its id."""
    batch_id = new_batch_id()
    await database.batches.upsert(an_order(batch_id, TENANT))
    total = sum(model.lines for model in models)
    await database.batches.start(TENANT, batch_id, total=total, models=list(models), at=after(10))
    return batch_id


def path_of(batch_id: str) -> str:
    return f"/v1/batches/{batch_id}/x/events"


async def test_a_batch_is_followed_to_its_end_over_two_connections(
    tmp_path: Path, database_url: str, database: Database
) -> None:
    batch_id = await started(database, ModelCounts(model="a", lines=9))
    with running(tmp_path, database_url=database_url) as (_, client):
        # The test's event loop, which the database needs, is free while a thread reads.
        with client.stream("GET", path_of(batch_id)) as response:
            events = Events(response)
            first = await asyncio.to_thread(next, events)
        await database.progress.record([slice_progress(tenant=TENANT, batch_id=batch_id, completed=4)])
        known = {"Last-Event-ID": first["id"]}
        with client.stream("GET", path_of(batch_id), headers=known) as response:
            events = Events(response)
            second = await asyncio.to_thread(next, events)
            await database.batch_ends.finish(TENANT, batch_id, an_outcome(), after(20))
            [last] = await asyncio.to_thread(list, events)
        again = client.get(path_of(batch_id), headers={"Last-Event-ID": last["id"]})
    assert [batch_in(each).request_counts.completed for each in (first, second, last)] == [0, 4, 8]
    assert [each["event"] for each in (first, second, last)] == [
        "batch.progress",
        "batch.progress",
        "batch.completed",
    ]
    assert again.status_code == 204


async def test_a_signal_ends_streams_at_once(tmp_path: Path, database_url: str, database: Database) -> None:
    batch_id = await started(database, ModelCounts(model="a", lines=9))
    settings = {"database_url": database_url, "drain_seconds": "900"}  # longer than the test may last
    with (
        running(tmp_path, **settings) as (process, client),
        client.stream("GET", path_of(batch_id)) as response,
    ):
        events = Events(response)
        assert (await asyncio.to_thread(next, events))["event"] == "batch.progress"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(list, events) == []  # fails if the connection broke
        assert await asyncio.to_thread(process.wait, 240) == 0


async def test_a_listener_that_does_not_read_is_cut_off_and_may_go_on(
    tmp_path: Path, database_url: str, database: Database
) -> None:
    models = [ModelCounts(model=f"{number:0200}", lines=9) for number in range(1000)]
    batch_id = await started(database, *models)
    with (
        constants(stalled_seconds=6, event_poll_seconds=0.01),
        running(tmp_path, database_url=database_url) as (_, client),
    ):
        address = (client.base_url.host, client.base_url.port or 0)
        with client.stream("GET", path_of(batch_id)) as response:
            first = await asyncio.to_thread(next, Events(response))
        with socket.create_connection(address) as connection:
            connection.sendall(f"GET {path_of(batch_id)} HTTP/1.1\r\nHost: api\r\n\r\n".encode())
            connection.recv(1, socket.MSG_PEEK)
            while await streams(client) != 1:  # until the first stream has ended
                pass
            completed = 0
            while await streams(client):  # the process's only stream
                completed += 1
                progress = slice_progress(
                    tenant=TENANT, batch_id=batch_id, model=models[0].model, completed=completed
                )
                await database.progress.record([progress])
                await asyncio.sleep(0.05)
        known = {"Last-Event-ID": first["id"]}
        with client.stream("GET", path_of(batch_id), headers=known) as response:
            latest = batch_in(await asyncio.to_thread(next, Events(response)))
    assert latest.request_counts.completed == completed


async def streams(client: httpx.Client) -> float:
    """Return the number of open streams of the process."""
    shown = await asyncio.to_thread(client.get, "/metrics")
    [line] = [line for line in shown.text.splitlines() if line.startswith("batchwright_api_event_streams ")]
    return float(line.split()[1])
