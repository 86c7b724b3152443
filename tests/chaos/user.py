"""A user of the official client who does not give up: submits, watches, cancels, waits."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import openai
from openai import AsyncOpenAI, omit
from openai.pagination import AsyncCursorPage
from openai.types import Batch

from tests.chaos.load import Seen, Submission
from tests.e2e.batches import CHAT, ENDED
from tests.e2e.stack import Stack

T = TypeVar("T")
_AGAIN_SECONDS = 0.3
_PATIENCE_SECONDS = 300.0
Call = Callable[[AsyncOpenAI], Awaitable[T]]


class User:
    """Of one tenant. The API may be away, and is asked again."""

    def __init__(self, stack: Stack, tenant: str) -> None:
        self._stack, self._tenant = stack, tenant

    async def insist(self, call: Call[T]) -> T:
        """What `call` answers, as soon as it does. Raises the API's 4xx, and TimeoutError."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                try:
                    async with self._stack.client(self._tenant) as client:
                        return await call(client)
                except (openai.APIConnectionError, openai.InternalServerError):
                    await asyncio.sleep(_AGAIN_SECONDS)

    async def submit(self, submission: Submission) -> Seen:
        content = "".join(json.dumps(line) + "\n" for line in submission.lines).encode()
        file = await self.insist(lambda c: c.files.create(file=("input.jsonl", content), purpose="batch"))
        batch = await self.insist(
            lambda c: c.batches.create(
                input_file_id=file.id,
                endpoint=CHAT,
                completion_window=submission.window,  # pyright: ignore[reportArgumentType]
            )
        )
        return Seen(submission, batch.id)

    async def follow(self, seen: Seen, patience: float) -> Batch:
        """Until it has ended; cancels where that is to be. Raises TimeoutError: it is stuck."""
        cancel_at = time.monotonic() + seen.submission.cancel_after
        cancelled = seen.submission.ending != "cancelled"
        async with asyncio.timeout(patience):
            while True:
                batch = await self.insist(lambda c: c.batches.retrieve(seen.batch_id))
                if not seen.statuses or seen.statuses[-1] != batch.status:
                    seen.statuses.append(batch.status)
                if batch.status in ENDED:
                    return batch
                if not cancelled and time.monotonic() >= cancel_at:
                    cancelled = True
                    await self._cancel(seen.batch_id)
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _cancel(self, batch_id: str) -> None:
        with suppress(openai.ConflictError):  # it ended just before
            await self.insist(lambda c: c.batches.cancel(batch_id))

    async def page(self, after: str) -> AsyncCursorPage[Batch]:
        """The hundred batches after that one, or the first."""

        async def listed(client: AsyncOpenAI) -> AsyncCursorPage[Batch]:
            return await client.batches.list(limit=100, after=after or omit)

        return await self.insist(listed)

    async def content(self, file_id: str | None) -> str:
        if file_id is None:
            return ""
        return (await self.insist(lambda c: c.files.content(file_id))).text
