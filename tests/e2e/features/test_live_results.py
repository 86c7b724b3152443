"""Results of a running batch, over HTTP and with the command line, on a whole stack."""

import asyncio

import pytest

from batchwright.client import AsyncBatches, Request
from tests.clients import http_client
from tests.e2e.batches import CHAT, chat_line, ended, until
from tests.e2e.stack import MODELS, Stack
from tests.integration.starter.commands import batchwright

pytestmark = pytest.mark.e2e


async def test_results_of_a_running_batch_are_the_beginning_of_its_file(stack: Stack) -> None:
    """The backend holds the requests of the second model, whose only line is in the middle of the input."""
    first, held = MODELS[:2]
    before = [chat_line(f"before-{n}", first) for n in range(30)]
    lines = [*before, chat_line("held", held), *(chat_line(f"after-{n}", first) for n in range(30))]
    async with (
        stack.client() as client,
        http_client(base_url=stack.now.api) as http,
        stack.backend.hold(held) as hold,
    ):
        batch = await hold.submit(client, lines)
        path = f"/v1/batches/{batch.id}/x/results"
        early = b""

        async def are_read() -> bool:
            nonlocal early
            early = (await http.get(path)).raise_for_status().content
            return early.count(b"\n") == len(before)

        async def settled_but_one() -> bool:
            found = (await http.get(path, params={"order": "settled"})).raise_for_status().content
            return found.count(b"\n") == len(lines) - 1

        await until(are_read)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        # Also the lines that the held one keeps back, in the order in which they settle.
        await until(settled_but_one)
        following = asyncio.create_task(batchwright("results", batch.id, "--follow", url=stack.now.api))
        await hold.release()
        batch = await ended(client, batch.id)
        assert batch.output_file_id is not None
        output = (await client.files.content(batch.output_file_id)).content
        last = early.splitlines()[-1][7:49].decode()
        rest = (await http.get(path, params={"after": last})).content
        followed = await following
    assert output.count(b"\n") == len(lines)
    assert (early + rest, "".join(f"{line}\n" for line in followed.stdout).encode()) == (output, output)


async def test_the_python_client_yields_results_of_a_running_batch_and_retries_failed_ones(
    stack: Stack,
) -> None:
    """The backend rejects the line `bad`, and holds the requests of the model that the line `held` uses."""
    first, held = MODELS[:2]
    bodies = {
        name: {
            "model": held if name == "held" else first,
            "messages": [{"role": "user", "content": name}],
            "user": "sim:400 python" if name == "bad" else "python",
        }
        for name in ("good", "bad", "held", "last")
    }
    async with stack.client() as client, stack.backend.hold(held) as hold:
        requests = [Request(*each) for each in bodies.items()]
        handle = await AsyncBatches(client).submit(requests, endpoint=CHAT, x_batchwright={"priority": 2})
        found = list[tuple[str, int | None]]()
        async for result in handle.results():
            found.append((result.custom_id, result.status_code))
            if result.custom_id == "bad":
                assert handle.batch.status == "in_progress"
                await hold.release()
        again = await handle.retry_failed(["http_400"])
        retried = [result.custom_id async for result in again.results()]
    assert found == [("good", 200), ("bad", 400), ("held", 200), ("last", 200)]
    assert (handle.batch.status, retried) == ("completed", ["bad"])
