"""A rate through the whole stack: kept by two workers, shown, changed while a batch runs."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.clients import http_client
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit
from tests.e2e.stack import MODELS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RATED, FREE = MODELS[:2]
RATE, LINES, TURNS_PER_SECOND = 4, 8, 0.5  # turns of two seconds
SETTINGS = {
    "BATCHWRIGHT_MODELS": json.dumps({RATED: {"requests_per_second": RATE}}),
    "BATCHWRIGHT_MODEL_REFRESH_SECONDS": "0.5",
}


def rates(stack: Stack, *arguments: str) -> dict[str, float]:
    """`batchwright rates`: requests/s by model."""
    command = [sys.executable, "-m", "starter", "rates", *arguments, "--json", "--url", stack.now.api]
    said = subprocess.run(command, check=True, capture_output=True, env=os.environ, timeout=120).stdout
    return {rate["model"]: rate["requests_per_second"] for rate in json.loads(said)["data"]}


async def reasons(stack: Stack, batch_id: str) -> list[object]:
    async with http_client() as http:
        answer = await http.get(f"{stack.now.api}/v1/batches/{batch_id}/x/state")
    return answer.raise_for_status().json()["waiting"]


async def test_two_workers_keep_a_rate_and_follow_its_change_while_a_batch_runs() -> None:
    with dev("--workers", "2", data=None, **SETTINGS) as stack:
        async with stack.client() as client:
            assert rates(stack) == {RATED: RATE}
            lines = chat_lines([FREE], each=30) + chat_lines([RATED], each=600)
            for place, line in enumerate(lines):
                line["custom_id"] = f"line-{place:05d}"
            began = time.monotonic()
            batch = await submit(client, lines)
            await settled(client, batch.id, 30 + 2 * LINES)
            sent = len(await stack.asked()) - 30
            turns = TURNS_PER_SECOND * (time.monotonic() - began + 1) + 1
            assert 2 * LINES <= sent <= turns * LINES
            assert await reasons(stack, batch.id) == []

            assert rates(stack, "set", RATED, "500") == {RATED: 500}
            batch = await ended(client, batch.id, seconds=90)  # at the first rate: 140 s more
            assert batch.status == "completed"
            await check_conservation(client, batch, lines)
            assert set((await stack.asked()).values()) == {1}
            assert rates(stack, "clear", RATED) == {RATED: RATE}
