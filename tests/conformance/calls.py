"""Checks of single calls with the official Python client."""

import pytest
from openai import APIError, BadRequestError, NotFoundError
from openai.types.chat import ChatCompletion, ChatCompletionUserMessageParam
from openai.types.responses import Response
from pydantic import TypeAdapter

from batchwright.rules.ids import new_call_id
from tests.clients import http_client
from tests.conformance.contract import Api, Table
from tests.e2e.batches import until
from tests.e2e.stack import MODELS

TABLE, TIGHT_TABLE = Table(), Table("tight")
_OBJECT = TypeAdapter(dict[str, object])
_ALWAYS = [name for name, field in Response.model_fields.items() if field.is_required()]


async def ended(api: Api, response: Response) -> Response:
    """Retrieve a response (a single call in the background) repeatedly until it has ended, and return it."""
    found = response

    async def has_ended() -> bool:
        nonlocal found
        found = await api.client.responses.retrieve(response.id)
        return found.status not in ("queued", "in_progress")

    await until(has_ended)
    return found


@TABLE.row("Single calls", "a response with `background: true` is created, retrieved until its end, and read")
async def background(api: Api) -> None:
    raw = await api.client.responses.with_raw_response.create(
        model=MODELS[0], input="Say it.", background=True, metadata={"a": "b"}
    )
    fields = _OBJECT.validate_json(raw.text)
    assert [name for name in _ALWAYS if name not in fields] == []
    made = raw.parse()
    assert (made.status, made.background, made.metadata, made.error) == ("queued", True, {"a": "b"}, None)
    done = await ended(api, made)
    assert (done.id, done.status, done.created_at) == (made.id, "completed", made.created_at)
    assert done.output_text


@TABLE.row("Single calls", "a response in the background is cancelled")
async def cancel(api: Api) -> None:
    async with api.stack.backend.hold(MODELS[0]):
        made = await api.client.responses.create(model=MODELS[0], input="Wait.", background=True)
        for _ in range(2):
            assert (await api.client.responses.cancel(made.id)).status == "cancelled"
    assert (await api.client.responses.retrieve(made.id)).status == "cancelled"


@TABLE.row("Single calls", "`service_tier: flex` holds the connection until the backend has answered")
async def flex(api: Api) -> None:
    completion = await api.client.chat.completions.create(
        model=MODELS[0], messages=[{"role": "user", "content": "Say it."}], service_tier="flex"
    )
    assert isinstance(completion, ChatCompletion)
    assert completion.choices[0].message.content
    response = await api.client.responses.create(model=MODELS[0], input="Say it.", service_tier="flex")
    assert (response.status, bool(response.output_text)) == ("completed", True)


@TABLE.row("Single calls", "the same call with the same `Idempotency-Key` is one call")
async def once(api: Api) -> None:
    headers = {"Idempotency-Key": new_call_id("resp_")}
    first, again = [
        await api.client.responses.create(
            model=MODELS[0], input="Say it.", background=True, extra_headers=headers
        )
        for _ in range(2)
    ]
    assert first.id == again.id
    await ended(api, first)


@TABLE.row("Single calls", "calls that cannot wait, streams, unknown models and unknown ids are refused")
async def refused(api: Api) -> None:
    create = api.client.responses.create
    with pytest.raises(BadRequestError) as caught:
        await create(model=MODELS[0], input="a")
    assert caught.value.param == "background"
    with pytest.raises(BadRequestError) as caught:
        await create(model=MODELS[0], input="a", background=True, stream=True)
    assert caught.value.param == "stream"
    with pytest.raises(NotFoundError) as unknown:
        await create(model="nothing", input="a", background=True)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(NotFoundError):
        await api.client.responses.retrieve(new_call_id("resp_"))


@TIGHT_TABLE.row(
    "Single calls", "if the operator allows it, calls that cannot wait are answered at once, also as streams"
)
async def interactive(api: Api) -> None:
    chats, asked = api.client.chat.completions, ChatCompletionUserMessageParam(role="user", content="Say it.")
    completion = await chats.create(model=MODELS[0], messages=[asked])
    stream = await chats.create(model=MODELS[0], messages=[asked], stream=True)
    words = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
    assert completion.choices[0].message.content
    assert len([word for word in words if word]) > 2
    assert (await api.client.responses.create(model=MODELS[0], input="Say it.")).output_text
    said = await api.client.responses.create(model=MODELS[0], input="Say it.", stream=True)
    assert [event.type async for event in said][-1] == "response.completed"
    broken = await chats.create(model=MODELS[0], messages=[asked], stream=True, user="sim:cut")
    with pytest.raises(APIError, match="connection ended"):
        [chunk async for chunk in broken]
    with pytest.raises(NotFoundError) as unknown:
        await chats.create(model="nothing", messages=[asked])
    assert unknown.value.code == "model_not_found"


@TABLE.row("Single calls", "a job is submitted to `/queue/submit` and retrieved with its result")
async def queue(api: Api) -> None:
    body = {"model": MODELS[0], "payload": {"messages": [{"role": "user", "content": "Say it."}]}}
    headers = {"X-Tenant": api.profile.value}
    async with http_client(api.url.removesuffix("/v1"), headers) as http:
        id = (await http.post("/queue/submit", json=body)).raise_for_status().json()["job_id"]

        async def is_completed() -> bool:
            return (await http.get(f"/queue/{id}")).raise_for_status().json()["status"] == "completed"

        await until(is_completed)
        assert (await http.get(f"/queue/{id}")).json()["result"]["object"] == "chat.completion"
