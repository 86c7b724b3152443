"""Checks of all endpoints that a batch may use, with the official Python client: bodies and usage."""

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence

from openai.types import Batch

from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.results.token_usage import usage_of
from tests.clients import http_client
from tests.conformance.contract import Api, Table
from tests.conformance.requests import done, jsonl, sent
from tests.e2e.batches import CHAT, chat_lines, ended
from tests.e2e.stack import MODELS

TABLE = Table()
_MESSAGES = [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}]
_BODIES: dict[Endpoint, dict[str, object]] = {
    Endpoint.RESPONSES: {"input": "hello"},
    Endpoint.CHAT_COMPLETIONS: {"messages": _MESSAGES},
    Endpoint.EMBEDDINGS: {"input": ["hello", "you"]},
    Endpoint.COMPLETIONS: {"prompt": "hello"},
    Endpoint.MODERATIONS: {"input": "hello"},
    Endpoint.IMAGES_GENERATIONS: {"prompt": "a cat"},
    Endpoint.IMAGES_EDITS: {"prompt": "a cat"},
    Endpoint.VIDEOS: {"prompt": "a cat"},
    Endpoint.MESSAGES: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8},
    Endpoint.SCORE: {"text_1": "a cat", "text_2": ["a dog", "a car"]},
    Endpoint.RERANK: {"query": "a cat", "documents": ["a dog", "a car"]},
}
# As no writer of JSON would write it: spaces, the order of keys, escapes, numbers beyond 64 bits.
_ODD = (
    '{ "messages":[{"content":"\\u0041\\/ \\ud83d\\ude00 é","role":"user"}] ,'
    f'"seed":123456789012345678901234567890,"x":1.10e+2,"model":"{MODELS[0]}" }}'
)


async def _run(api: Api, endpoint: Endpoint) -> Batch:
    body = {"model": MODELS[0], **_BODIES[endpoint]}
    line: dict[str, object] = {"custom_id": "a", "method": "POST", "url": endpoint.value, "body": body}
    file = await sent(api.client, jsonl([line]))
    # The official client's type has OpenAI's endpoints only.
    batch = await api.client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint.value,  # pyright: ignore[reportArgumentType]
        completion_window="24h",
    )
    return await ended(api.client, batch.id)


async def _content(api: Api, file_id: str | None) -> str:
    assert file_id is not None
    return (await api.client.files.content(file_id)).text


@TABLE.row(
    "Batches", "each of OpenAI's eight endpoints works; `usage` is the sum of what the backend reported"
)
async def endpoints(api: Api) -> None:
    await _all_run(api, [endpoint for endpoint in Endpoint if endpoint.is_openais])


@TABLE.row("Batches", "`/v1/messages`, `/v1/score` and `/v1/rerank` work as in vLLM", Profile.RELAXED)
async def engines_endpoints(api: Api) -> None:
    await _all_run(api, [endpoint for endpoint in Endpoint if not endpoint.is_openais])


async def _all_run(api: Api, endpoints: Sequence[Endpoint]) -> None:
    batches = await asyncio.gather(*(_run(api, endpoint) for endpoint in endpoints))
    assert [batch.status for batch in batches] == ["completed"] * len(endpoints)
    assert [batch.endpoint for batch in batches] == [endpoint.value for endpoint in endpoints]
    for endpoint, batch in zip(endpoints, batches, strict=True):
        answer = json.loads(await _content(api, batch.output_file_id))["response"]["body"]
        reported = usage_of(json.dumps(answer).encode())
        assert batch.usage is not None
        summed = (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.total_tokens)
        assert summed == (reported.input_tokens, reported.output_tokens, reported.total_tokens)
        if endpoint in (
            Endpoint.RESPONSES,
            Endpoint.CHAT_COMPLETIONS,
            Endpoint.EMBEDDINGS,
            Endpoint.MESSAGES,
        ):
            assert batch.usage.input_tokens > 0


@TABLE.row("Batches", "`model` is null if a batch has several models")
async def several_models(api: Api) -> None:
    assert (await done(api.client, jsonl(chat_lines(MODELS[:2], each=1)))).model is None


@TABLE.row("Results", "bodies are sent unchanged, and the backend's JSON is returned unchanged")
async def byte_exact(api: Api) -> None:
    line = f'{{"custom_id":"odd","method":"POST","url":"{CHAT}","body":{_ODD}}}\n'
    batch = await done(api.client, line.encode())
    output = await _content(api, batch.output_file_id)
    headers = {"Content-Type": "application/json"}
    async with http_client(base_url=api.stack.simulator) as http:
        again = await http.post(CHAT, content=_ODD.encode(), headers=headers)
    # The simulator's ids are digests of the request; only the number of cached tokens differs.
    assert hashlib.blake2b(_ODD.encode(), digest_size=16).hexdigest() in again.json()["id"]
    assert '"body":' + _uncached(again.text) + "}" in _uncached(output)


def _uncached(text: str) -> str:
    return re.sub(r'"cached_tokens":\d+', '"cached_tokens":0', text)
