"""A user who submits, follows and cancels batches, and repeats each request until the API responds."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import anthropic
import httpx2
import openai
from openai import AsyncOpenAI, omit
from openai.pagination import AsyncCursorPage
from openai.types import Batch

from tests.chaos.load import Seen, Submission
from tests.e2e.batches import CHAT, ENDED, has_pending_files
from tests.e2e.stack import Stack

T = TypeVar("T")
_AGAIN_SECONDS = 0.3
_PATIENCE_SECONDS = 300.0
_UNAVAILABLE = (
    openai.APIConnectionError,
    openai.InternalServerError,
    openai.RateLimitError,
    anthropic.APIConnectionError,
    anthropic.InternalServerError,
    httpx2.TransportError,  # while a stream is read
)
Call = Callable[[AsyncOpenAI], Awaitable[T]]


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Call `call` again and again while the API is unavailable, and return its result.

    Raises:
        openai.APIStatusError: the API rejected the call with a 4xx status other than 429.
        anthropic.APIStatusError: the same, if the call was made with Anthropic's client.
        TimeoutError: the API was unavailable for five minutes.
    """
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            try:
                return await call()
            except _UNAVAILABLE:
                await asyncio.sleep(_AGAIN_SECONDS)


class User:
    """A user of one tenant, with the official OpenAI client.

    Requests are repeated while the API is unavailable. An API process that is started again has the same
    address.
    """

    def __init__(self, stack: Stack, tenant: str) -> None:
        self.tenant = tenant
        self._client = stack.client(tenant)

    async def close(self) -> None:
        await self._client.close()

    async def insist(self, call: Call[T]) -> T:
        """Call `call` with the user's client. Repeat the call as the function `insist` does."""
        return await insist(lambda: call(self._client))

    async def upload(self, submission: Submission) -> str:
        """Upload the lines of a batch, and return the id of the file."""
        file = await self.insist(
            lambda c: c.files.create(file=("input.jsonl", submission.content), purpose="batch")
        )
        return file.id

    async def create(self, submission: Submission, input: str, **extension: str | int) -> str:
        """Create a batch, and return its id.

        Args:
            input: id of a file, or URL of an object.
            extension: fields of `x_batchwright`.
        """
        batch = await self.insist(
            lambda c: c.batches.create(
                input_file_id=input,
                endpoint=CHAT,
                completion_window=submission.window,  # pyright: ignore[reportArgumentType]
                extra_body={"x_batchwright": extension} if extension else None,
            )
        )
        return batch.id

    async def follow(self, seen: Seen, patience: float) -> Batch:
        """Poll the batch until it has ended and its files are written, and return it.

        If the submission has a time for it, cancel the batch meanwhile.

        Args:
            patience: seconds after which waiting is given up.

        Raises:
            TimeoutError: the batch has not ended, or has no files yet, after `patience` seconds.
        """
        cancel_at = time.monotonic() + seen.submission.cancel_after
        cancelled = seen.submission.ending != "cancelled"
        async with asyncio.timeout(patience):
            while True:
                batch = await self._poll(seen.batch_id)
                seen.observe(batch.status, batch.request_counts)
                if batch.status in ENDED and not has_pending_files(batch):
                    seen.end()
                    return batch
                if not cancelled and time.monotonic() >= cancel_at:
                    cancelled = True
                    await self._cancel(seen.batch_id)
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _poll(self, batch_id: str) -> Batch:
        """Return the batch. A request that fails is repeated after 0.3 s.

        The client itself would pause for up to 8 s, and so see progress later than it is made.
        """
        return await self.insist(lambda c: c.with_options(max_retries=0).batches.retrieve(batch_id))

    async def _cancel(self, batch_id: str) -> None:
        with suppress(openai.ConflictError):  # it ended just before
            await self.insist(lambda c: c.batches.cancel(batch_id))

    async def page(self, after: str) -> AsyncCursorPage[Batch]:
        """Return the hundred batches after the batch `after` in the list; the first hundred for ""."""

        async def listed(client: AsyncOpenAI) -> AsyncCursorPage[Batch]:
            return await client.batches.list(limit=100, after=after or omit)

        return await self.insist(listed)

    async def content(self, file_id: str | None) -> str:
        if file_id is None:
            return ""
        return (await self.insist(lambda c: c.files.content(file_id))).text
