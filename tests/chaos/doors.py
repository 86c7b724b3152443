"""The ways in which the batches of a chaos run are created. They are called doors.

After a batch has ended, its door checks what the user gets besides the files of the batch.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol
from uuid import uuid4

import httpx
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from openai import BadRequestError, ConflictError, NotFoundError
from openai.types import Batch

from batchwright.contracts.api_objects.schedules import ScheduleObject, ScheduleRunObject
from tests.chaos.check import lines_of
from tests.chaos.folders import Folders
from tests.chaos.load import Door, Seen, Submission
from tests.chaos.objects import Objects, TenantData
from tests.chaos.user import User, insist
from tests.e2e.batches import CHAT, ResultLine, until
from tests.e2e.stack import Stack

_PATIENCE_SECONDS = 600.0  # as for events
_NEVER = "30 2 1 7 *"  # once a year: the schedule is triggered instead
_UNSENT = {"batch_cancelled": "canceled", "batch_expired": "expired"}


class DoorKeeper(Protocol):
    async def submit(self, user: User, submission: Submission) -> str:
        """Create a batch, and return its id."""
        ...

    async def check(self, user: User, seen: Seen, batch: Batch) -> list[str]:
        """Compare what users get for a batch of this door with the files of the ended batch.

        Return a sentence for each difference.
        """
        ...


class UploadedFile:
    """A door that uploads files with OpenAI's client. Users get only the files of the batch."""

    async def submit(self, user: User, submission: Submission) -> str:
        return await user.create(submission, await user.upload(submission))

    async def check(self, user: User, seen: Seen, batch: Batch) -> list[str]:
        return []


class ObjectReferences:
    """A door whose batches name an object in a bucket as their input. Users also get the files of the batch
    as objects.
    """

    def __init__(self, data: TenantData) -> None:
        self._data = data

    async def submit(self, user: User, submission: Submission) -> str:
        name = f"in/{uuid4().hex}.jsonl"
        url = await asyncio.to_thread(self._data.put, name, submission.content)
        return await user.create(submission, url, output_location=f"{self._data.location}out")

    async def check(self, user: User, seen: Seen, batch: Batch) -> list[str]:
        async def is_decided() -> bool:
            shown = await user.insist(lambda c: c.batches.retrieve(batch.id))
            states.append(_extension(shown)["output_location"]["state"])
            return states[-1] != "pending"

        states: list[str] = []
        with suppress(TimeoutError):
            await until(is_decided, _PATIENCE_SECONDS)
        if states[-1] != "written":
            return [f"has objects that are {states[-1]}"]
        broken: list[str] = []
        for kind, file_id in (("output", batch.output_file_id), ("error", batch.error_file_id)):
            data = await asyncio.to_thread(self._data.get, f"out/{batch.id}_{kind}.jsonl")
            if data != (None if file_id is None else (await user.content(file_id)).encode()):
                broken.append(f"has an {kind} object that differs from the file")
        return broken


class StartTimes:
    """A door that uploads files for batches which start a second or two after their creation."""

    async def submit(self, user: User, submission: Submission) -> str:
        file_id = await user.upload(submission)
        while True:
            try:
                return await user.create(submission, file_id, start_at=int(time.time()) + 2)
            except BadRequestError as error:  # it was in the past when the API was available again
                if error.param != "x_batchwright.start_at":
                    raise

    async def check(self, user: User, seen: Seen, batch: Batch) -> list[str]:
        start_at = _extension(batch)["start_at"]
        is_early = batch.in_progress_at is not None and batch.in_progress_at < start_at
        return [f"began at {batch.in_progress_at}, before {start_at}"] if is_early else []


class Schedules:
    """A door that creates a schedule for each batch and triggers it once. Users also see the runs of the
    schedule.
    """

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}  # by batch

    async def submit(self, user: User, submission: Submission) -> str:
        file_id = await user.upload(submission)
        batch = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": submission.window}
        body = {"cron": _NEVER, "batch": batch}
        made = await user.insist(lambda c: c.post("/x/schedules", cast_to=httpx.Response, body=body))
        path = f"/x/schedules/{ScheduleObject.model_validate_json(made.content).id}"
        with suppress(ConflictError):  # an attempt without a response has triggered it
            await user.insist(
                lambda c: c.with_options(max_retries=0).post(f"{path}/trigger", cast_to=httpx.Response)
            )
        runs: list[ScheduleRunObject] = []

        async def has_run() -> bool:
            runs[:] = await _runs(user, path)
            return bool(runs)

        await until(has_run, _PATIENCE_SECONDS)
        batch_id = runs[-1].batch_id
        assert batch_id is not None, f"a schedule created no batch: {runs}"
        self._paths[batch_id] = path
        return batch_id

    async def check(self, user: User, seen: Seen, batch: Batch) -> list[str]:
        path = self._paths.pop(batch.id)
        shown = [run.status for run in await _runs(user, path) if run.batch_id == batch.id]
        with suppress(NotFoundError):  # an attempt without a response has deleted it
            await user.insist(lambda c: c.delete(path, cast_to=httpx.Response))
        return [] if shown == [batch.status] else [f"is {shown} in the runs of its schedule"]


async def _runs(user: User, path: str) -> list[ScheduleRunObject]:
    found = await user.insist(lambda c: c.get(path, cast_to=httpx.Response))
    return ScheduleObject.model_validate_json(found.content).runs


class MessageBatches:
    """A door that uses Anthropic's client. Users get a result for each request, and the counts of the
    results.
    """

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

    If the batch was cancelled so early that it has no files, each request in `custom_ids` must be canceled.
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


def _extension(batch: Batch) -> dict[str, Any]:
    return (batch.model_extra or {})["x_batchwright"]


def doors(stack: Stack, objects: Objects) -> Mapping[Door, DoorKeeper]:
    """Return the doors (ways to create a batch) of a run. Batches of objects are possible only
    with a bucket.
    """
    keepers: dict[Door, DoorKeeper] = {
        Door.FILE: UploadedFile(),
        Door.MESSAGES: MessageBatches(stack),
        Door.LATER: StartTimes(),
        Door.SCHEDULE: Schedules(),
        Door.FOLDER: Folders(stack, stack.now.data / "folders"),
    }
    if objects.data is not None:
        keepers[Door.OBJECT] = ObjectReferences(objects.data)
    return keepers
