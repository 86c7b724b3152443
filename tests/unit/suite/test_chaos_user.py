"""The user of the chaos tests reads a batch only when it no longer changes, and polls without long pauses."""

from types import SimpleNamespace
from typing import cast

import httpx2
import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from tests.chaos import user as chaos_user
from tests.chaos.load import Seen, Submission
from tests.chaos.user import User
from tests.e2e.stack import Stack


class EarlyEnd:
    """A stack with one batch. The batch expires immediately, and has no files until it was polled three
    times.
    """

    def __init__(self) -> None:
        self.polls = 0

    def client(self, tenant: str) -> SimpleNamespace:
        return SimpleNamespace(with_options=lambda **_: SimpleNamespace(batches=self))  # pyright: ignore[reportUnknownLambdaType]

    async def retrieve(self, batch_id: str) -> Batch:
        self.polls += 1
        pending = self.polls < 3
        return Batch.model_construct(
            id=batch_id,
            status="expired",
            output_file_id=None if pending else "file-1",
            x_batchwright={"files_pending": pending},
        )


async def test_a_batch_that_ended_early_is_followed_until_it_has_its_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chaos_user, "_AGAIN_SECONDS", 0.0)
    seen = Seen(Submission([], {}, "expired"), "batch_1")
    batch = await User(cast(Stack, EarlyEnd()), "default").follow(seen, patience=60)
    assert (batch.output_file_id, seen.statuses) == ("file-1", ["expired"])


async def test_a_poll_that_fails_is_repeated_without_the_pauses_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client would wait for the time in Retry-After, and see the progress of the batch later."""
    monkeypatch.setattr(chaos_user, "_AGAIN_SECONDS", 0.0)
    retries: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        retries.append(request.headers["x-stainless-retry-count"])
        if len(retries) < 3:
            return httpx2.Response(503, headers={"Retry-After": "0.01"})
        return httpx2.Response(200, json={"id": "batch_1", "status": "expired"})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        client = AsyncOpenAI(base_url="http://api.test/v1", api_key="none", max_retries=5, http_client=http)
        stack = SimpleNamespace(client=lambda _: client)  # pyright: ignore[reportUnknownLambdaType]
        seen = Seen(Submission([], {}, "expired"), "batch_1")
        await User(cast(Stack, stack), "default").follow(seen, patience=60)
    assert retries == ["0", "0", "0"]
