"""Helpers that use batches as a user does: write lines, upload, create, wait, and read the results."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Literal

from openai import AsyncOpenAI
from openai.types import Batch
from pydantic import BaseModel, ConfigDict

ENDED = {"completed", "failed", "expired", "cancelled"}
CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
_LEAST_SECONDS_LEFT = 3


class _Extension(BaseModel):
    files_pending: bool = False


class _Extended(BaseModel):
    x_batchwright: _Extension | None = None


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
    """Return `each` input lines for every model. Lines of different models alternate.

    Args:
        user: value of the field `user`. A test finds the lines by it in the simulator's ledger.
    """
    names = list(models)
    more = {} if user is None else {"user": user}
    return [chat_line(f"line-{i:05d}", names[i % len(names)], **more) for i in range(each * len(names))]


async def submit(
    client: AsyncOpenAI,
    lines: list[dict[str, object]],
    window: str = "24h",
    endpoint: str = CHAT,
) -> Batch:
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = await client.files.create(file=("input.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,  # pyright: ignore[reportArgumentType]
        completion_window=window,  # pyright: ignore[reportArgumentType]
    )


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 300) -> None:
    """Wait until `condition` returns True. It is called four times a second.

    Raises:
        TimeoutError: it is still False after `seconds`.
    """
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.25)


def has_pending_files(batch: Batch) -> bool:
    """Return True if the batch has ended early and its files are not written yet."""
    extension = _Extended.model_validate(batch.model_dump()).x_batchwright
    return extension is not None and extension.files_pending


async def ended(client: AsyncOpenAI, batch_id: str, seconds: float = 300) -> Batch:
    """Wait until the batch has ended and its files are written, and return it.

    Raises:
        TimeoutError: it has not ended, or has no files yet, after `seconds`.
    """

    async def has_ended() -> bool:
        batch = await client.batches.retrieve(batch_id)
        return batch.status in ENDED and not has_pending_files(batch)

    await until(has_ended, seconds)
    return await client.batches.retrieve(batch_id)


async def expired(
    client: AsyncOpenAI, lines: list[dict[str, object]], has_begun: Callable[[Batch], bool]
) -> Batch:
    """Submit lines, some of which get no response. Return their batch when it has expired.

    If `has_begun` returns False for the expired batch, its completion window was too short for this machine.
    Then submit the lines again with a longer one, at most twice.
    """
    batch = None
    for window in ("12s", "60s", "180s"):
        submitted = await submit(client, lines, window=window)
        batch = await ended(client, submitted.id)
        if has_begun(batch):
            break
    assert batch is not None
    return batch


async def submit_to_expire(client: AsyncOpenAI, lines: list[dict[str, object]], least: int) -> Batch:
    """Submit lines in a batch that expires soon. Return it when at least `least` lines have a result.

    At least three seconds are left then until the batch expires. If this machine is too slow for that, submit
    the lines again with a longer completion window, at most twice.

    Raises:
        AssertionError: the longest completion window was too short, too.
    """
    for window in ("15s", "60s", "180s"):
        batch = await submit(client, lines, window)
        assert batch.expires_at is not None

        async def has_results_or_ended(batch_id: str = batch.id) -> bool:
            found = await client.batches.retrieve(batch_id)
            return found.status in ENDED or has_results(found, least)

        await until(has_results_or_ended)
        if time.time() < batch.expires_at - _LEAST_SECONDS_LEFT:
            return batch
    raise AssertionError(f"fewer than {least} lines had a result within 180 s")


def has_results(batch: Batch, least: int) -> bool:
    counts = batch.request_counts
    return counts is not None and counts.completed + counts.failed >= least


async def settled(client: AsyncOpenAI, batch_id: str, least: int, seconds: float = 300) -> None:
    """Wait until at least `least` lines of the batch have a result, successful or not."""

    async def counted() -> bool:
        return has_results(await client.batches.retrieve(batch_id), least)

    await until(counted, seconds)


async def lines_of(client: AsyncOpenAI, file_id: str | None) -> list[ResultLine]:
    if file_id is None:
        return []
    text = (await client.files.content(file_id)).text
    return [ResultLine.model_validate_json(line) for line in text.splitlines()]


async def check_conservation(client: AsyncOpenAI, batch: Batch, lines: list[dict[str, object]]) -> None:
    """Check that each input line is exactly once in the output file or the error file.

    Both files must be in input order, and the counts of the batch must match the files.
    """
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


async def a_day_that_lasts() -> None:
    """If midnight (UTC) is near, wait until it has passed, because budgets begin again at midnight."""

    async def is_far() -> bool:
        now = datetime.now(UTC)
        return (now + timedelta(minutes=4)).date() == now.date()

    await until(is_far)


async def first_with(
    client: AsyncOpenAI, lines: list[dict[str, object]], *, refused: int
) -> tuple[Batch, int]:
    """Submit batches with these lines, one after the other, until a batch ends with `refused` failed lines.

    Several batches may be needed, because workers apply a changed setting only after some seconds. Return the
    last batch, and the number of tokens that all batches have used.
    """
    tokens = 0
    for _ in range(50):
        batch = await ended(client, (await submit(client, lines)).id)
        await check_conservation(client, batch, lines)
        assert batch.request_counts is not None
        tokens += 0 if batch.usage is None else batch.usage.total_tokens
        if batch.request_counts.failed == refused:
            return batch, tokens
    raise AssertionError(f"no batch ends with {refused} lines refused")
