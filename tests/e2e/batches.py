"""Batches as a user makes them: lines, upload, create, wait, read."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal

from openai import AsyncOpenAI
from openai.types import Batch
from pydantic import BaseModel, ConfigDict

ENDED = {"completed", "failed", "expired", "cancelled"}
CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"


class Error(BaseModel):
    code: str
    message: str


class Response(BaseModel):
    model_config = ConfigDict(extra="allow")
    status_code: int


class ResultLine(BaseModel):
    id: str
    custom_id: str
    response: Response | None
    error: Error | None


def chat_line(custom_id: str, model: str, prompt: str = "hello", **more: str) -> dict[str, object]:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"{prompt} {custom_id}"},
    ]
    body = {"model": model, "messages": messages, **more}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def chat_lines(models: Iterable[str], each: int, user: str | None = None) -> list[dict[str, object]]:
    """`each` lines per model, the models taking turns; the simulator knows them by their `user`."""
    names = list(models)
    more = {} if user is None else {"user": user}
    return [chat_line(f"line-{i:05d}", names[i % len(names)], **more) for i in range(each * len(names))]


async def submit(
    client: AsyncOpenAI,
    lines: list[dict[str, object]],
    window: str = "24h",
    endpoint: Literal["/v1/chat/completions", "/v1/embeddings"] = CHAT,
) -> Batch:
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = await client.files.create(file=("input.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,
        completion_window=window,  # pyright: ignore[reportArgumentType]
    )


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 300) -> None:
    """Waits for a condition, asking four times a second."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - the condition is another process's
            await asyncio.sleep(0.25)


async def ended(client: AsyncOpenAI, batch_id: str, seconds: float = 300) -> Batch:
    async def has_ended() -> bool:
        return (await client.batches.retrieve(batch_id)).status in ENDED

    await until(has_ended, seconds)
    return await client.batches.retrieve(batch_id)


async def settled(client: AsyncOpenAI, batch_id: str, least: int, seconds: float = 300) -> None:
    """Waits until the batch counts at least `least` settled lines."""

    async def counted() -> bool:
        counts = (await client.batches.retrieve(batch_id)).request_counts
        return counts is not None and counts.completed + counts.failed >= least

    await until(counted, seconds)


async def lines_of(client: AsyncOpenAI, file_id: str | None) -> list[ResultLine]:
    if file_id is None:
        return []
    text = (await client.files.content(file_id)).text
    return [ResultLine.model_validate_json(line) for line in text.splitlines()]


async def check_conservation(client: AsyncOpenAI, batch: Batch, lines: list[dict[str, object]]) -> None:
    """Every custom id exactly once over both files, each file in input order, counts equal to the files."""
    order = {str(line["custom_id"]): place for place, line in enumerate(lines)}
    output = await lines_of(client, batch.output_file_id)
    errors = await lines_of(client, batch.error_file_id)
    for file in (output, errors):
        places = [order[line.custom_id] for line in file]
        assert places == sorted(places)
    assert sorted(line.custom_id for line in output + errors) == sorted(order)
    counts = batch.request_counts
    assert counts is not None
    assert (counts.completed, counts.failed, counts.total) == (len(output), len(errors), len(lines))


async def first_with(
    client: AsyncOpenAI, lines: list[dict[str, object]], *, refused: int
) -> tuple[Batch, int]:
    """The first batch that ends so, for workers follow within seconds; the tokens of all by then."""
    tokens = 0
    for _ in range(50):
        batch = await ended(client, (await submit(client, lines)).id)
        await check_conservation(client, batch, lines)
        assert batch.request_counts is not None
        tokens += 0 if batch.usage is None else batch.usage.total_tokens
        if batch.request_counts.failed == refused:
            return batch, tokens
    raise AssertionError(f"no batch ends with {refused} lines refused")
