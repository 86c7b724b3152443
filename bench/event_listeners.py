"""Measures the CPU time that the API uses while clients (listeners) read the event stream of a batch.

It is a part of the section `progress` of the benchmark.
"""

import asyncio
import time
from urllib.parse import urlsplit

import psutil

from batchwright.starter.client import Client
from bench import batches
from bench.results import Figure, Target
from bench.section import SectionOptions
from bench.stack import RunningStack, cpu_seconds, wait_until_quiet

_LISTENERS = 200
_MEASURED_SECONDS = 10.0
_EVENT = b"event: batch.progress\n"


def measure(stack: RunningStack, client: Client, file_id: str, options: SectionOptions) -> Figure:
    """Run a batch of the file, and return the CPU time that the API uses for the listeners.

    A listener is a client that reads the event stream of the batch. The CPU time is measured twice: first
    without listeners, then with listeners. The result is the difference, in per cent of a core.

    Raises:
        SystemExit: the batch ended before both measurements were over, or the API ended an event stream.
    """
    seconds = 2.0 if options.quick else _MEASURED_SECONDS
    wait_until_quiet(stack)
    batch = batches.create(client, file_id)
    while not batch.request_counts.settled:
        time.sleep(0.1)
        batch = client.batch(batch.id)
    alone = share_of_a_core(stack, seconds)
    beside, events = asyncio.run(_followed(stack, batch.id, seconds))
    if client.cancel(batch.id).status.is_terminal:
        raise SystemExit(f"{batch.id} ended before the measurement did.")
    share = max(beside - alone, 0.0)
    options.report(f"{_LISTENERS} listeners: {share:.2f} % of a core for {events:,} events")
    what = f"a core's time for {_LISTENERS} streams of events of the batch"
    return Figure("progress.listeners", what, [share], "%", Target(5.0))


def share_of_a_core(stack: RunningStack, seconds: float) -> float:
    """Return the CPU time of the API during the next `seconds`, in per cent of a core."""
    api = [psutil.Process(pid) for pid in stack.pids.api]
    before, began = cpu_seconds(api), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds(api) - before) / (time.perf_counter() - began) * 100


async def _followed(stack: RunningStack, batch_id: str, seconds: float) -> tuple[float, int]:
    """Read the event stream of the batch with all listeners for `seconds`.

    The measurement begins when each listener has received an event. Return the CPU time of the API in per
    cent of a core, and the number of events during the measurement.

    Raises:
        SystemExit: the API ended an event stream before the measurement began.
    """
    received = [0] * _LISTENERS
    listening = [asyncio.create_task(_listen(stack, batch_id, received, n)) for n in range(_LISTENERS)]
    try:
        while not all(received):
            await asyncio.sleep(0.05)
            for task in listening:
                if task.done():
                    task.result()
                    raise SystemExit("The API ended a stream of events.")
        begun = sum(received)
        share = await asyncio.to_thread(share_of_a_core, stack, seconds)
        return share, sum(received) - begun
    finally:
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)


async def _listen(stack: RunningStack, batch_id: str, received: list[int], number: int) -> None:
    """Read the event stream of the batch as listener `number`, and count the events in `received[number]`."""
    place = urlsplit(stack.api)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        request = f"GET /v1/batches/{batch_id}/x/events HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n"
        writer.write(request.encode())
        while line := await reader.readline():
            received[number] += line == _EVENT
    finally:
        writer.close()
