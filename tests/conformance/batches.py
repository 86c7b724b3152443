"""Batches, by the official Python client: creation, life, refusals."""

import asyncio

import pytest
from openai import BadRequestError, ConflictError, NotFoundError
from openai.types import Batch

from batchwright.contracts.openai import Profile
from tests.conformance.contract import Api, Table
from tests.conformance.exact import exact
from tests.conformance.requests import LINES, NOWHERE, created, done, jsonl, sent
from tests.e2e.batches import CHAT, chat_lines, ended, settled
from tests.e2e.stack import MODELS

TABLE = Table()
_TIMES = ("created_at", "in_progress_at", "finalizing_at", "cancelling_at")


def times(batch: Batch) -> list[int]:
    """In the order of a batch's life, its end last."""
    end = getattr(batch, f"{batch.status}_at")
    return [time for time in (*(getattr(batch, name) for name in _TIMES), end) if time is not None]


@TABLE.row("Batches", "a create answers 200 with the whole Batch: zero counts and usage, `expires_at` set")
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


@TABLE.row("Batches", "lists go page by page by id, newest first; `after` of another list is 404")
async def pages(api: Api) -> None:
    made = [(await created(api.client)).id for _ in range(3)]
    listed = [batch.id async for batch in api.client.batches.list(limit=2)]
    assert listed[:3] == made[::-1]
    assert len(set(listed)) == len(listed)
    page = await api.client.batches.list(limit=1, after=made[2])
    assert ([batch.id for batch in page.data], page.has_more) == ([made[1]], True)
    with pytest.raises(NotFoundError):
        await api.client.batches.list(after=NOWHERE)
    await asyncio.gather(*(ended(api.client, batch_id) for batch_id in made))


@TABLE.row("Batches", "an unknown batch is 404 with OpenAI's message")
async def unknown(api: Api) -> None:
    for call in (api.client.batches.retrieve, api.client.batches.cancel):
        with pytest.raises(NotFoundError, match="No batch found with id 'batch_0'"):
            await call("batch_0")


@TABLE.row(
    "Batches", "a cancel answers `cancelling`, then `cancelled` with what was settled; again: unchanged"
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


@TABLE.row("Batches", "a batch that ended another way cannot be cancelled: 409, which clients do not retry")
async def late_cancel(api: Api) -> None:
    batch = await done(api.client)
    with pytest.raises(ConflictError, match="Cannot cancel a batch with status 'completed'") as conflict:
        await api.client.with_options(max_retries=5).batches.cancel(batch.id)
    assert conflict.value.response.headers["x-should-retry"] == "false"


@TABLE.row("Batches", "what is wrong with a create is refused with `code` and `param`")
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


@TABLE.row("Batches", "an `Idempotency-Key` makes a create that is sent twice one batch")
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
    "Batches", "other windows, absent ones, lines without `method` and `url` are refused", Profile.STRICT
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
    "Batches", "a window that closes keeps what was settled; the rest is `batch_expired`", Profile.RELAXED
)
async def expiry(api: Api) -> None:
    await api.stack.faults(model=MODELS[1], kind="hang", rate=1.0)
    file = await sent(api.client, jsonl(chat_lines(MODELS[:2], each=4)))
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "8s"}
    batch = await ended(api.client, (await api.client.post("/batches", cast_to=Batch, body=body)).id)
    assert (batch.status, batch.finalizing_at) == ("expired", None)
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 8, "completed": 4, "failed": 4}
    assert times(batch) == sorted(times(batch))
