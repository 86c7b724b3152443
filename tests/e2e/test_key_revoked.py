"""An API key that is revoked while a batch of it runs: what was sent is kept, the rest is rejected."""

import asyncio
import json
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from batchwright.rules.api_keys import ApiKey, parse
from tests.e2e.batches import chat_lines, check_conservation, ended, lines_of, settled, submit, until
from tests.e2e.fleet import workers
from tests.e2e.stack import MODELS, Stack, dev
from tests.integration.commands import batchwright
from tests.unit.sockets import HEAD, read_request, served

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
MODEL, TENANT, AT_FIRST = MODELS[0], "blue", 10
LINES = chat_lines((MODEL,), each=2_000)
SETTINGS = {
    "BATCHWRIGHT_AUTH": "api_key",
    "BATCHWRIGHT_MODEL_IN_FLIGHT": "4",
    "BATCHWRIGHT_SLICE_SECONDS": "600",  # no turn ends while requests are held
}
_MODELS = json.dumps(
    {"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]}
).encode()
_ANSWER = b'{"id":"1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'


class Gate:
    """A backend that answers as many requests as it was told to, in their order, and holds the others."""

    def __init__(self) -> None:
        self.asked: list[str] = []  # custom ids
        self._permits = asyncio.Semaphore(0)
        self._is_open = False

    def let(self, count: int) -> None:
        for _ in range(count):
            self._permits.release()

    def open(self) -> None:
        """From now on nothing is held."""
        self._is_open = True
        self.let(len(self.asked))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        answer = _ANSWER
        if head.startswith(b"GET"):
            answer = _MODELS
        else:
            self.asked.append(json.loads(body)["messages"][-1]["content"].rpartition(" ")[2])
            if not self._is_open:
                await self._permits.acquire()
        writer.write(HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)
        await writer.drain()


async def new_key(stack: Stack) -> ApiKey:
    made = await batchwright("keys", "create", TENANT, database_url=stack.now.postgres)
    key = parse(made.said[0])
    assert key is not None, made.complained
    return key


def client_of(stack: Stack, key: ApiKey) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=stack.now.api + "/v1", api_key=key.text, max_retries=5)


async def test_what_was_sent_before_a_key_was_revoked_is_kept_and_the_rest_is_rejected(
    tmp_path: Path,
) -> None:
    """Held at the backend: one more answer at a time, until a worker is seen to know of it."""
    gate = Gate()
    with dev("--workers", "0", data=None, **SETTINGS) as stack:
        database_url = stack.now.postgres
        await batchwright("tenants", "create", TENANT, database_url=database_url)
        key, other = await new_key(stack), await new_key(stack)
        async with served(gate.serve) as target, workers(stack, tmp_path, **SETTINGS) as fleet:
            backends = json.dumps([f"http://{target.url.host}:{target.url.port}"])
            await fleet.start(BATCHWRIGHT_BACKENDS=backends)
            async with client_of(stack, key) as client:
                batch = await submit(client, LINES)
            async with client_of(stack, other) as client:
                gate.let(AT_FIRST)
                await settled(client, batch.id, AT_FIRST)
                early = set(gate.asked[:AT_FIRST])
                revoked = await batchwright("keys", "revoke", f"bw_{key.prefix}", database_url=database_url)
                assert revoked.code == 0, revoked.complained

                async def rejects() -> bool:
                    counts = (await client.batches.retrieve(batch.id)).request_counts
                    gate.let(1)
                    return counts is not None and counts.failed > 0

                await until(rejects)
                gate.open()
                done = await ended(client, batch.id)
                await check_conservation(client, done, LINES)
                output = [line.custom_id for line in await lines_of(client, done.output_file_id)]
                errors = await lines_of(client, done.error_file_id)
    assert done.status == "completed"
    assert early <= set(output)
    assert sorted(output) == sorted(gate.asked)
    assert errors
    assert {line.error and line.error.code for line in errors} == {"policy_rejected"}
    assert all(line.response is None for line in errors)
