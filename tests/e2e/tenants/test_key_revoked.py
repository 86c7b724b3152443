"""An API key is revoked while its batch runs: lines already sent keep their results, others are rejected."""

import asyncio
import json
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from batchwright.rules.tenants.api_keys import ApiKey, parse_key
from tests.e2e.batches import chat_lines, check_conservation, ended, lines_of, settled, submit, until
from tests.e2e.fleet import workers
from tests.e2e.stack import MODELS, Stack, dev
from tests.fakes.raw_servers import HEAD, read_request, served
from tests.integration.starter.commands import batchwright

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
MODEL, TENANT, AT_FIRST = MODELS[0], "blue", 10
LINES = chat_lines((MODEL,), each=2_000)
SETTINGS = {
    "BATCHWRIGHT_AUTH": "api_key",
    "BATCHWRIGHT_MODEL_IN_FLIGHT": "4",
    "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "60",  # a worker on a busy machine must not count as lost
    "BATCHWRIGHT_SLICE_SECONDS": "600",  # no turn ends while requests are held
}
_MODELS = json.dumps(
    {"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]}
).encode()
_ANSWER = b'{"id":"1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'


class Gate:
    """A backend that answers requests in order of arrival, as many as the test allows with `let`. All others
    wait.
    """

    def __init__(self) -> None:
        self.requested: list[str] = []  # custom ids
        self._permits = asyncio.Semaphore(0)
        self._is_open = False

    def let(self, count: int) -> None:
        for _ in range(count):
            self._permits.release()

    def open(self) -> None:
        """Answer all waiting requests, and from now on each request as soon as it arrives."""
        self._is_open = True
        self.let(len(self.requested))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        answer = _ANSWER
        if head.startswith(b"GET"):
            answer = _MODELS
        else:
            self.requested.append(json.loads(body)["messages"][-1]["content"].rpartition(" ")[2])
            if not self._is_open:
                await self._permits.acquire()
        writer.write(HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)
        await writer.drain()


async def new_key(stack: Stack) -> ApiKey:
    created = await batchwright("keys", "create", TENANT, database_url=stack.now.postgres)
    key = parse_key(created.stdout[0])
    assert key is not None, created.stderr
    return key


def client_of(stack: Stack, key: ApiKey) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=stack.now.api + "/v1", api_key=key.text, max_retries=5)


async def test_answers_from_before_a_key_was_revoked_are_kept_and_the_rest_is_rejected(
    tmp_path: Path,
) -> None:
    """The backend holds all requests, and then answers one at a time until a worker has noticed the
    revocation.
    """
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
                early = set(gate.requested[:AT_FIRST])
                revoked = await batchwright("keys", "revoke", f"bw_{key.prefix}", database_url=database_url)
                assert revoked.code == 0, revoked.stderr

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
    assert sorted(output) == sorted(gate.requested)
    assert errors
    assert {line.error and line.error.code for line in errors} == {"policy_rejected"}
    assert all(line.response is None for line in errors)
