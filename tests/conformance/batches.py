"""Checks of batches with the official Python client: creation, progress and rejections."""

import asyncio
import time

import httpx
import pytest
from openai import BadRequestError, ConflictError, NotFoundError
from openai.types import Batch

from batchwright.contracts.api_objects.openai import ThroughputObject
from batchwright.contracts.terms import Profile
from tests.clients import http_client
from tests.conformance.contract import Api, Table
from tests.conformance.exact import exact
from tests.conformance.requests import LINES, NOWHERE, created, done, jsonl, sent
from tests.e2e.batches import CHAT, ENDED, chat_lines, ended, settled
from tests.e2e.stack import MODELS

TABLE = Table()
_TIMES = ("created_at", "in_progress_at", "finalizing_at", "cancelling_at")


def times(batch: Batch) -> list[int]:
    """Return the times of a batch as Unix seconds, in the order in which they must follow each other.

    The last one is the time of its end.
    """
    end = getattr(batch, f"{batch.status}_at")
    return [time for time in (*(getattr(batch, name) for name in _TIMES), end) if time is not None]


@TABLE.row(
    "Batches", "a creation returns 200 with the complete Batch: zero counts and usage, `expires_at` set"
)
async def creation(api: Api) -> None:
    file = await sent(api.client)
    raw = api.client.batches.with_raw_response
    answer = await raw.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"team": "blue"}
    )
    batch = exact(answer)
    assert (batch.input_file_id, batch.endpoint, batch.metadata) == (file.id, CHAT, {"team": "blue"})
    assert batch.expires_at == batch.created_at + 86_400
    assert batch.request_counts is not None
    assert batch.usage is not None
    assert batch.usage.to_dict() == {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 0,
    }
    await ended(api.client, batch.id)


@TABLE.row("Batches", "a completed batch has its model, counts, usage, files, and times that never decrease")
async def completion(api: Api) -> None:
    batch = await done(api.client)
    batch = exact(await api.client.batches.with_raw_response.retrieve(batch.id))
    assert (batch.status, batch.model, batch.errors, batch.error_file_id) == (
        "completed",
        MODELS[0],
        None,
        None,
    )
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 3, "completed": 3, "failed": 0}
    assert batch.usage is not None
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens > 0
    assert times(batch) == sorted(times(batch))
    assert batch.output_file_id is not None
    file = await api.client.files.retrieve(batch.output_file_id)
    assert (file.filename, file.purpose) == (f"{batch.id}_output.jsonl", "batch_output")


@TABLE.row("Batches", "`output_expires_after` counts from the creation of the output file")
async def output_expiry(api: Api) -> None:
    file = await sent(api.client)
    batch = await api.client.batches.create(
        input_file_id=file.id,
        endpoint=CHAT,
        completion_window="24h",
        output_expires_after={"anchor": "created_at", "seconds": 7200},
    )
    batch = await ended(api.client, batch.id)
    assert batch.output_file_id is not None
    output = await api.client.files.retrieve(batch.output_file_id)
    assert output.expires_at == output.created_at + 7200


@TABLE.row(
    "Batches",
    "`x/events` streams the batch object at each change until it has ended, also over several connections",
)
async def events(api: Api) -> None:
    batch = await created(api.client)
    url = f"{api.url}/batches/{batch.id}/x/events"
    known: dict[str, str] = {}
    seen: list[Batch] = []
    async with http_client(headers={"X-Tenant": api.profile.value}) as client:
        while not seen or seen[-1].status not in ENDED:
            async with client.stream("GET", url, headers=known) as response:
                response.raise_for_status()
                async for line in response.aiter_lines():
                    name, _, value = line.partition(": ")
                    if name == "data":
                        seen.append(Batch.model_validate_json(value))
                    elif name == "id":
                        known = {"Last-Event-ID": value}
        assert (await client.get(url, headers=known)).status_code == 204
        assert (await client.get(url, headers={"Last-Event-ID": "1"})).status_code == 400
    assert seen[-1] == await api.client.batches.retrieve(batch.id)


@TABLE.row(
    "Batches",
    "`x/throughput` counts the lines with a result over the time in which the batch was in progress",
)
async def throughput(api: Api) -> None:
    batch = await ended(api.client, (await created(api.client)).id)
    path = f"{api.url}/batches"
    async with http_client(headers={"X-Tenant": api.profile.value}) as client:
        response = await client.get(f"{path}/{batch.id}/x/throughput")
        assert (await client.get(f"{path}/{NOWHERE}/x/throughput")).status_code == 404
    samples = ThroughputObject.model_validate_json(response.content).data
    assert batch.in_progress_at is not None
    assert batch.completed_at is not None
    assert batch.request_counts is not None
    assert (samples[0].lines, samples[-1].lines) == (0, batch.request_counts.total)
    assert samples == sorted(samples, key=lambda sample: (sample.at, sample.lines))
    assert batch.in_progress_at <= samples[0].at <= samples[-1].at <= batch.completed_at


@TABLE.row("Batches", "an unknown batch is 404 with OpenAI's message")
async def unknown(api: Api) -> None:
    for call in (api.client.batches.retrieve, api.client.batches.cancel):
        with pytest.raises(NotFoundError, match="No batch found with id 'batch_0'"):
            await call("batch_0")


@TABLE.row(
    "Batches",
    "a cancel returns `cancelling`, then `cancelled` with finished results; a repeat changes nothing",
)
async def cancellation(api: Api) -> None:
    await api.stack.faults(model=MODELS[1], kind="hang", rate=1.0)
    batch = await created(api.client, jsonl(chat_lines(MODELS[:2], each=5)))
    await settled(api.client, batch.id, 5)
    cancelling = exact(await api.client.batches.with_raw_response.cancel(batch.id))
    assert (cancelling.status, cancelling.cancelled_at) == ("cancelling", None)
    assert cancelling.cancelling_at is not None
    batch = await ended(api.client, batch.id)
    assert (batch.status, batch.finalizing_at) == ("cancelled", None)
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 10, "completed": 5, "failed": 5}
    assert times(batch) == sorted(times(batch))
    assert (await api.client.batches.cancel(batch.id)) == batch


@TABLE.row("Batches", "a batch that has ended otherwise cannot be cancelled: 409 without a retry")
async def late_cancel(api: Api) -> None:
    batch = await done(api.client)
    with pytest.raises(ConflictError, match="Cannot cancel a batch with status 'completed'") as conflict:
        await api.client.with_options(max_retries=5).batches.cancel(batch.id)
    assert conflict.value.response.headers["x-should-retry"] == "false"


@TABLE.row("Batches", "an ended batch is deleted with its files, except its input; a live one is 409")
async def deletion(api: Api) -> None:
    await api.stack.faults(model=MODELS[0], kind="hang", rate=1.0)
    batch = await created(api.client)
    path = f"/batches/{batch.id}"
    with pytest.raises(ConflictError, match="cancel it, or wait") as conflict:
        await api.client.with_options(max_retries=5).delete(path, cast_to=httpx.Response)
    assert conflict.value.response.headers["x-should-retry"] == "false"
    await api.client.batches.cancel(batch.id)
    batch = await ended(api.client, batch.id)
    for _ in range(2):
        deleted = await api.client.delete(path, cast_to=httpx.Response)
        assert deleted.json() == {"id": batch.id, "object": "batch", "deleted": True}
    for call, id in (
        (api.client.batches.retrieve, batch.id),
        (api.client.files.retrieve, batch.error_file_id),
    ):
        assert id is not None
        with pytest.raises(NotFoundError):
            await call(id)
    assert (await api.client.files.delete(batch.input_file_id)).deleted


@TABLE.row("Batches", "an invalid creation is rejected with `code` and `param`")
async def refusals(api: Api) -> None:
    vision = await api.client.files.create(file=("a.png", b"x"), purpose="vision")
    body = {"input_file_id": NOWHERE, "endpoint": CHAT, "completion_window": "24h"}
    wrong: list[tuple[dict[str, object], str, str]] = [
        ({"endpoint": CHAT, "completion_window": "24h"}, "missing_required_parameter", "input_file_id"),
        ({**body, "endpoint": "/v1/x"}, "invalid_value", "endpoint"),
        ({**body, "completion_window": "soon"}, "invalid_value", "completion_window"),
        ({**body, "metadata": {"k": ["v"]}}, "invalid_type", "metadata.k"),
        ({**body, "metadata": {str(i): "v" for i in range(17)}}, "invalid_value", "metadata"),
        ({**body, "metadata": {"k" * 65: "v"}}, "invalid_value", "metadata"),
        ({**body, "metadata": {"k": "v" * 513}}, "invalid_value", "metadata"),
        (
            {**body, "output_expires_after": {"anchor": "x", "seconds": 3600}},
            "invalid_value",
            "output_expires_after.anchor",
        ),
        (
            {**body, "output_expires_after": {"anchor": "created_at", "seconds": 1}},
            "invalid_value",
            "output_expires_after.seconds",
        ),
        ({**body, "input_file_id": vision.id}, "invalid_value", "input_file_id"),
        ({**body, "colour": "red"}, "unknown_parameter", "colour"),
    ]
    for sent_body, code, param in wrong:
        with pytest.raises(BadRequestError) as refused:
            await api.client.post("/batches", cast_to=Batch, body=sent_body)
        assert (refused.value.code, refused.value.param) == (code, param)
        assert refused.value.type == "invalid_request_error"


@TABLE.row("Batches", "with an `Idempotency-Key`, a creation that is sent twice creates one batch")
async def idempotency(api: Api) -> None:
    file = await sent(api.client)

    async def create(window: str = "24h") -> Batch:
        headers = {"Idempotency-Key": file.id}
        body = {
            "input_file_id": file.id,
            "endpoint": CHAT,
            "completion_window": "24h",
            "metadata": {"w": window},
        }
        return await api.client.post("/batches", cast_to=Batch, body=body, options={"headers": headers})

    first, *others = await asyncio.gather(*(create() for _ in range(4)))
    assert others == [first] * 3
    with pytest.raises(ConflictError):
        await create("1h")
    await ended(api.client, first.id)
    assert await create() == first


@TABLE.row(
    "Batches",
    "`x_batchwright.start_at` starts a batch then; a time in the past or no time is 400 with `param`",
    Profile.RELAXED,
)
async def later_start(api: Api) -> None:
    file = await sent(api.client)

    async def create(start_at: object) -> Batch:
        body = {"input_file_id": file.id, "endpoint": CHAT, "x_batchwright": {"start_at": start_at}}
        return await api.client.post("/batches", cast_to=Batch, body=body)

    start = int(time.time()) + 15  # still to come when a busy API checks it
    batch, other = await create(start), await create(start + 3600)
    assert batch.expires_at == start + 24 * 3600
    await api.client.batches.cancel(other.id)
    cancelled = await ended(api.client, other.id)
    assert (cancelled.status, cancelled.in_progress_at) == ("cancelled", None)
    batch = await ended(api.client, batch.id)
    assert (batch.status, batch.in_progress_at is not None) == ("completed", True)
    assert (batch.in_progress_at or 0) >= start
    for wrong in (1, "2020-01-01T00:00:00Z", "tomorrow", "2030-01-01", True):
        with pytest.raises(BadRequestError) as refused:
            await create(wrong)
        assert refused.value.param == "x_batchwright.start_at"


@TABLE.row(
    "Batches", "other windows, absent ones, lines without `method` and `url` are accepted", Profile.RELAXED
)
async def relaxed(api: Api) -> None:
    bare = [{key: line[key] for key in ("custom_id", "body")} for line in LINES]
    file = await sent(api.client, jsonl(bare))
    body = {"input_file_id": file.id, "endpoint": CHAT}
    batch = await api.client.post("/batches", cast_to=Batch, body=body)
    assert batch.completion_window == "24h"
    assert (await ended(api.client, batch.id)).status == "completed"
    other = await api.client.post("/batches", cast_to=Batch, body={**body, "completion_window": "2h"})
    assert other.expires_at == other.created_at + 7200
    await ended(api.client, other.id)


@TABLE.row(
    "Batches",
    "`x_batchwright.priority` is 3 if absent, else 1 to 5; other values are 400 with `param`",
    Profile.RELAXED,
)
async def priorities(api: Api) -> None:
    file = await sent(api.client)

    async def create(**extension: object) -> Batch:
        body = {"input_file_id": file.id, "endpoint": CHAT, "x_batchwright": extension}
        return await api.client.post("/batches", cast_to=Batch, body=body)

    for extension, expected in (({}, 3), ({"priority": 5}, 5)):
        batch = await create(**extension)
        assert batch.to_dict()["x_batchwright"]["priority"] == expected  # pyright: ignore[reportIndexIssue] - the values are typed as object
        assert (await ended(api.client, batch.id)).status == "completed"
    for wrong in (0, 6, 2.5, "5", True):
        with pytest.raises(BadRequestError) as refused:
            await create(priority=wrong)
        assert refused.value.param == "x_batchwright.priority"


@TABLE.row(
    "Batches", "other windows, absent ones, lines without `method` and `url` are rejected", Profile.STRICT
)
async def strict(api: Api) -> None:
    body = {"input_file_id": NOWHERE, "endpoint": CHAT}
    for window in ({"completion_window": "2h"}, {}):
        with pytest.raises(BadRequestError) as refused:
            await api.client.post("/batches", cast_to=Batch, body={**body, **window})
        assert refused.value.param == "completion_window"
    bare = [{key: line[key] for key in ("custom_id", "body")} for line in LINES[:1]]
    batch = await done(api.client, jsonl(bare))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(error.code, error.param, error.line) for error in batch.errors.data or []] == [
        ("missing_required_parameter", "method", 1),
        ("missing_required_parameter", "url", 1),
    ]


@TABLE.row(
    "Batches",
    "when the window ends, finished results are kept; other lines are `batch_expired`",
    Profile.RELAXED,
)
async def expiry(api: Api) -> None:
    await api.stack.faults(model=MODELS[1], kind="hang", rate=1.0)
    file = await sent(api.client, jsonl(chat_lines(MODELS[:2], each=4)))
    # Long enough for four answers on a slow machine.
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "60s"}
    batch = await ended(api.client, (await api.client.post("/batches", cast_to=Batch, body=body)).id)
    assert (batch.status, batch.finalizing_at) == ("expired", None)
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 8, "completed": 4, "failed": 4}
    assert times(batch) == sorted(times(batch))
