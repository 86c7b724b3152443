"""How each batch of a chaos run is created, and what its user gets back besides its files."""

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from openai.types import Batch

from tests.chaos.check import lines_of
from tests.chaos.load import Door, Seen, Submission
from tests.chaos.user import User, insist
from tests.e2e.batches import ResultLine
from tests.e2e.stack import Stack

_UNSENT = {"batch_cancelled": "canceled", "batch_expired": "expired"}


class DoorKeeper(Protocol):
    async def submit(self, user: User, submission: Submission) -> str:
        """Create a batch, and return its id."""
        ...

    async def check(self, user: User, seen: Seen, batch: Batch) -> list[str]:
        """Compare what the door gives back with the files of the ended batch. Return a sentence for each
        difference.
        """
        ...


class UploadedFile:
    """An uploaded file and OpenAI's client. The door gives back only the files of the batch."""

    async def submit(self, user: User, submission: Submission) -> str:
        return await user.create(submission, await user.upload(submission))

    async def check(self, user: User, seen: Seen, batch: Batch) -> list[str]:
        return []


class MessageBatches:
    """Anthropic's client. It gives back a result for each request, and their counts."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    async def submit(self, user: User, submission: Submission) -> str:
        requests = [{"custom_id": line["custom_id"], "params": line["body"]} for line in submission.lines]
        async with self._client(user) as client:
            batch = await insist(
                lambda: client.messages.batches.create(requests=requests)  # pyright: ignore[reportArgumentType]
            )
        return batch.id.removeprefix("msg")

    async def check(self, user: User, seen: Seen, batch: Batch) -> list[str]:
        id = f"msg{batch.id}"
        async with self._client(user) as client:
            shown = await insist(lambda: client.messages.batches.retrieve(id))
            results = await insist(lambda: _results(client, id))
        output = await lines_of(user, batch.output_file_id)
        errors = await lines_of(user, batch.error_file_id)
        return message_differences(shown, results, [*output, *errors], seen.submission.fates)

    @asynccontextmanager
    async def _client(self, user: User) -> AsyncGenerator[AsyncAnthropic]:
        async with AsyncAnthropic(
            base_url=self._stack.now.api,
            api_key="none",
            default_headers={"X-Tenant": user.tenant},
            max_retries=5,
            http_client=DefaultAsyncHttpxClient(verify=False),
        ) as client:
            yield client


async def _results(client: AsyncAnthropic, id: str) -> list[MessageBatchIndividualResponse]:
    return [each async for each in await client.messages.batches.results(id)]


def message_differences(
    shown: MessageBatch,
    results: Sequence[MessageBatchIndividualResponse],
    lines: Sequence[ResultLine],
    custom_ids: Iterable[str],
) -> list[str]:
    """Return a sentence for each difference between a message batch and the lines of its files.

    If it was cancelled so early that it has no files, each of its `custom_ids` is canceled.
    """
    expected = [(line.custom_id, _result_type(line)) for line in lines] or [
        (custom_id, "canceled") for custom_id in custom_ids
    ]
    bodies = {line.custom_id: _body(line) for line in lines}
    broken: list[str] = []
    if [(each.custom_id, each.result.type) for each in results] != expected:
        broken.append(f"has {len(results)} message results, which differ from its {len(expected)} lines")
    wrong = [
        each.custom_id
        for each in results
        if each.result.type == "succeeded"
        and each.result.message.to_dict(mode="json") != bodies.get(each.custom_id)
    ]
    if wrong:
        broken.append(f"has messages that differ from its output: {wrong[:5]}")
    counts = Counter(type for _, type in expected)
    if shown.processing_status != "ended" or Counter(shown.request_counts.to_dict()) != counts:
        broken.append(f"is {shown.processing_status} with {shown.request_counts}, its results are {counts}")
    return broken


def _result_type(line: ResultLine) -> str:
    if line.response is not None:
        return "succeeded" if line.response.status_code == 200 else "errored"
    return _UNSENT.get(line.error.code, "errored") if line.error else "errored"


def _body(line: ResultLine) -> object:
    return None if line.response is None else (line.response.model_extra or {}).get("body")


def doors(stack: Stack) -> Mapping[Door, DoorKeeper]:
    """Return the doors of a run."""
    return {Door.FILE: UploadedFile(), Door.MESSAGES: MessageBatches(stack)}
