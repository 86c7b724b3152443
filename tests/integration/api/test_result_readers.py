"""Clients that read results of a running API process.

A client that does not read is disconnected, so that another one can read. It may continue later from where it
stopped.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.database.database import Database
from batchwright.rules.ids import new_batch_id
from batchwright.storage.local import LocalStorage
from tests.constants import constants
from tests.integration.api.test_connections import is_open_at_server
from tests.integration.api.test_process import running
from tests.integration.database.rows import a_file, after, an_order, an_outcome
from tests.integration.starter.stacks import until

pytestmark = pytest.mark.integration
TENANT, READERS, LINES = "default", 8, 24_000
FILL = "x" * 1024  # 24 MiB are more than connections buffer


def result(number: int) -> bytes:
    return b'{"id":"batch_req_%032x","custom_id":"%d","response":"%b"}\n' % (number, number, FILL.encode())


async def ended_batch(database: Database, storage: LocalStorage) -> str:
    """Store a batch that has ended, with a large output file. Return its id."""
    batch_id, output = new_batch_id(), b"".join(map(result, range(LINES)))
    await storage.put("x/out", output)
    file = a_file(
        "file-" + 32 * "0", tenant=TENANT, purpose="batch_output", storage_key="x/out", bytes=len(output)
    )
    await database.batches.upsert(an_order(batch_id, TENANT))
    models = [ModelCounts(model="a", lines=LINES)]
    await database.batches.start(TENANT, batch_id, total=LINES, models=models, at=after(10))
    await database.batch_ends.finish(TENANT, batch_id, an_outcome(output=file, error=None), after(20))
    return batch_id


async def test_readers_that_do_not_read_are_cut_off_and_may_go_on(
    tmp_path: Path, database_url: str, database: Database
) -> None:
    batch_id = await ended_batch(database, LocalStorage(tmp_path / "objects"))
    path = f"/v1/batches/{batch_id}/x/results"
    with (
        constants(stalled_seconds=6),
        running(tmp_path, database_url=database_url) as (process, client),
        ExitStack() as opened,
    ):
        address = (client.base_url.host, client.base_url.port or 0)
        idle = [opened.enter_context(socket.create_connection(address)) for _ in range(READERS + 1)]
        for connection in idle:  # all at once: the first must not be cut off before the last one arrives
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n".encode())
        statuses = [await asyncio.to_thread(status_of, connection) for connection in idle]
        assert sorted(statuses) == [b"200"] * READERS + [b"429"]
        idle.pop(statuses.index(b"429"))
        server = psutil.Process(process.pid)
        await asyncio.to_thread(until, lambda: not any(is_open_at_server(server, each) for each in idle))
        await asyncio.to_thread(until, lambda: status(client, path) == 200)
        got = await asyncio.to_thread(b"".join, received(idle[0]))
        assert 0 < got.count(b"\n") < LINES
        whole = got[: got.rindex(b"\n")].splitlines()[1:]
        last = next(line for line in reversed(whole) if line.startswith(b'{"id":"batch_req_'))
        number = int(last[17:49], 16)
        rest = await asyncio.to_thread(client.get, path, params={"after": f"batch_req_{number:032x}"})
    assert rest.content == b"".join(map(result, range(number + 1, LINES)))


def status(client: httpx.Client, path: str) -> int:
    """Request one result, and return the status of the response."""
    return client.get(path, params={"custom_id": "0"}).status_code


def status_of(connection: socket.socket) -> bytes:
    """Return the status of the response on the connection, and leave the response unread."""
    return connection.recv(len(b"HTTP/1.1 200"), socket.MSG_PEEK).split()[1]


def received(connection: socket.socket) -> Iterator[bytes]:
    """Yield what the server had sent before it closed the connection."""
    try:
        while piece := connection.recv(1024 * 1024):
            yield piece
    except ConnectionResetError:
        pass
