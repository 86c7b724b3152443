"""The user of the chaos tests reads a batch only when it no longer changes."""

from types import SimpleNamespace
from typing import cast

import pytest
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
        return SimpleNamespace(batches=self)

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
