"""A rate limit holds for two workers together. It is shown, and changed while a batch runs."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.clients import http_client
from tests.constants import with_constants
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RATED, FREE = MODELS[:2]
RATE, LINES, TURNS_PER_SECOND = 4, 8, 0.5  # turns of two seconds
SETTINGS = {
    "BATCHWRIGHT_MODELS": json.dumps({RATED: {"requests_per_second": RATE}}),
    "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "60",  # a worker on a busy machine must not count as lost
    **with_constants(refresh_seconds=0.5),
}


def rates(stack: Stack, *arguments: str) -> dict[str, float]:
    """Run `batchwright rates` with these arguments, and return the requests per second by model."""
    command = [
        sys.executable,
        "-m",
        "batchwright.starter",
        "rates",
        *arguments,
        "--json",
        "--url",
        stack.now.api,
    ]
    output = subprocess.run(command, check=True, capture_output=True, env=os.environ, timeout=120).stdout
    return {rate["model"]: rate["requests_per_second"] for rate in json.loads(output)["data"]}


async def is_not_waiting(stack: Stack, batch_id: str) -> bool:
    """Return True if the API shows no waiting reason of the batch."""
    async with http_client() as http:
        answer = await http.get(f"{stack.now.api}/v1/batches/{batch_id}/x/state")
    return answer.raise_for_status().json()["waiting"] == []


async def test_two_workers_keep_a_rate_and_follow_its_change_while_a_batch_runs() -> None:
    with dev("--workers", "2", data=None, **SETTINGS) as stack:
        async with stack.client() as client:
            assert rates(stack) == {RATED: RATE}
            lines = chat_lines([FREE], each=30) + chat_lines([RATED], each=2_400)
            for place, line in enumerate(lines):
                line["custom_id"] = f"line-{place:05d}"
            began = time.monotonic()
            batch = await submit(client, lines)
            await settled(client, batch.id, 30 + 2 * LINES)
            sent = len(await stack.requests_by_id()) - 30
            turns = TURNS_PER_SECOND * (time.monotonic() - began) + 2  # the first and the last are cut off
            assert 2 * LINES <= sent <= turns * LINES
            await until(lambda: is_not_waiting(stack, batch.id))

            assert rates(stack, "set", RATED, "500") == {RATED: 500}
            batch = await ended(client, batch.id, seconds=300)  # at the first rate: ten minutes
            assert batch.status == "completed"
            await check_conservation(client, batch, lines)
            assert set((await stack.requests_by_id()).values()) == {1}
            assert rates(stack, "clear", RATED) == {RATED: RATE}
