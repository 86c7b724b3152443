"""The name under which a process is known to Temporal."""

from batchwright.process_name import process_name
from batchwright.settings import load
from batchwright.temporal import open_connection


async def test_temporal_and_heartbeats_have_the_same_name_of_a_process() -> None:
    client, _ = await open_connection(load(), lazy=True)
    assert client.identity == process_name()
