"""Checks of Anthropic's Message Batches with the official Python client."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anthropic
import httpx
import pytest
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from anthropic.types.messages.batch_create_params import Request
from pydantic import TypeAdapter

from batchwright.contracts.terms import Profile
from tests.clients import http_client
from tests.conformance.contract import Api, Table
from tests.conformance.exact import differences
from tests.conformance.keys import a_tenant, operate
from tests.conformance.places import TIGHT
from tests.conformance.requests import jsonl, sent
from tests.conformance.tenants import another
from tests.e2e.batches import ended as openai_ended
from tests.e2e.batches import until
from tests.e2e.stack import MODELS

TABLE, TIGHT_TABLE, KEYS_TABLE = Table(), Table("tight"), Table("keys")
PATH = "/v1/messages/batches"
VERSION = {"anthropic-version": "2023-06-01"}
_OBJECT = TypeAdapter(dict[str, object])
_REQUESTS = int(TIGHT["BATCHWRIGHT_MAX_MESSAGE_REQUESTS"])
_BYTES = int(TIGHT["BATCHWRIGHT_MAX_MESSAGE_BATCH_BYTES"])


@asynccontextmanager
async def client_of(api: Api, key: str = "none", tenant: str = "") -> AsyncGenerator[AsyncAnthropic]:
    """Yield the official client for `tenant`, or for the API's tenant of this profile if it is empty."""
    async with AsyncAnthropic(
        base_url=root(api),
        api_key=key,
        default_headers={"X-Tenant": tenant or api.profile.value} if key == "none" else {},
        max_retries=0,
        http_client=DefaultAsyncHttpxClient(verify=False),
    ) as client:
        yield client


def root(api: Api) -> str:
    return api.url.removesuffix("/v1")


def params(text: str = "hello", **changes: object) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    return {"model": MODELS[0], "max_tokens": 16, "messages": messages, **changes}


def requests(*every: object) -> list[Request]:
    """Return requests with the custom ids r0, r1 and so on. `every` has their `params`, of any type."""
    return [{"custom_id": f"r{n}", "params": each} for n, each in enumerate(every)]  # pyright: ignore[reportReturnType]


async def ended(client: AsyncAnthropic, batch: MessageBatch) -> MessageBatch:
    """Wait until processing has ended, and return the batch."""
    found = batch

    async def has_ended() -> bool:
        nonlocal found
        found = await client.messages.batches.retrieve(batch.id)
        return found.processing_status == "ended"

    await until(has_ended)
    return found


async def results_of(
    client: AsyncAnthropic, batch: MessageBatch
) -> dict[str, MessageBatchIndividualResponse]:
    return {each.custom_id: each async for each in await client.messages.batches.results(batch.id)}


@TABLE.row(
    "Message batches", "a batch is created, awaited, and its results are read: messages of the backend"
)
async def whole(api: Api) -> None:
    async with client_of(api) as client:
        raw = await client.messages.batches.with_raw_response.create(
            requests=requests(params("a"), params("b"))
        )
        assert raw.headers["request-id"]
        batch = await raw.parse()
        assert (batch.processing_status, batch.request_counts.processing) == ("in_progress", 2)
        assert list(differences(MessageBatch, _OBJECT.validate_json(await raw.text()), "MessageBatch")) == []
        batch = await ended(client, batch)
        counts = {"processing": 0, "succeeded": 2, "errored": 0, "canceled": 0, "expired": 0}
        assert batch.request_counts.to_dict() == counts
        assert batch.ended_at is not None
        results = await results_of(client, batch)
        for text in ("r0", "r1"):
            result = results[text].result
            assert result.type == "succeeded"
            assert (result.message.type, result.message.role, result.message.model) == (
                "message",
                "assistant",
                MODELS[0],
            )
            assert result.message.usage.output_tokens > 0


@TABLE.row("Message batches", "a request with bad `params` fails alone: its result is `errored`")
async def alone(api: Api) -> None:
    bad = [
        5,
        params(stream=True),
        params(max_tokens=0),
        params(model=None),
        {},
        params(model="nobody-serves-this"),
    ]
    async with client_of(api) as client:
        await api.stack.faults(model=MODELS[1], kind=400, rate=1.0)
        every = [params(), *bad, params(model=MODELS[1])]
        batch = await ended(client, await client.messages.batches.create(requests=requests(*every)))
        assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, len(bad) + 1)
        types: list[str] = []
        for result in (await results_of(client, batch)).values():
            if result.result.type == "errored":
                assert result.result.error.type == "error"
                types.append(result.result.error.error.type)
        invalid = ["invalid_request_error"] * len(bad)
        assert sorted(types) == sorted([*invalid, "not_found_error"])


@TABLE.row("Message batches", "batches are listed newest first, with `after_id` and `before_id`")
async def pages(api: Api) -> None:
    async with client_of(api) as client:
        batches = client.messages.batches
        ids = [(await batches.create(requests=requests(params()))).id for _ in range(3)][::-1]
        listed = [each.id async for each in batches.list(limit=2)]
        assert listed[:3] == ids
        forth = await batches.list(limit=1, after_id=ids[0])
        back = await batches.list(limit=1, before_id=ids[2])
        assert [each.id for each in forth.data] == [each.id for each in back.data] == [ids[1]]
        assert [each.id async for each in batches.list(limit=1, before_id=ids[2])][:2] == [ids[1], ids[0]]
        with pytest.raises(anthropic.BadRequestError, match="only one of them"):
            await batches.list(after_id=ids[0], before_id=ids[1])


@TABLE.row(
    "Message batches", "a batch is canceled: its unsent requests are `canceled`; later it can be deleted"
)
async def canceled(api: Api) -> None:
    async with client_of(api) as client, api.stack.backend.hold(MODELS[0]):
        batch = await client.messages.batches.create(requests=requests(*[params(str(n)) for n in range(20)]))
        with pytest.raises(anthropic.BadRequestError, match="cancel it, or wait until it ends"):
            await client.messages.batches.delete(batch.id)
        assert (await client.messages.batches.cancel(batch.id)).processing_status in ("canceling", "ended")
    async with client_of(api) as client:
        batch = await ended(client, batch)
        results = await results_of(client, batch)
        assert batch.cancel_initiated_at is not None
        assert batch.request_counts.canceled + batch.request_counts.succeeded == len(results) == 20
        with pytest.raises(anthropic.BadRequestError, match="has ended"):
            await client.messages.batches.cancel(batch.id)
        assert (await client.messages.batches.delete(batch.id)).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(batch.id)


@TABLE.row(
    "Message batches", "`msgbatch_X` is the batch `batch_X` of the OpenAI client, with its usage and files"
)
async def same(api: Api) -> None:
    async with client_of(api) as client:
        batch = await client.messages.batches.create(requests=requests(params()))
        shown = await openai_ended(api.client, batch.id.removeprefix("msg"))
        assert (shown.endpoint, shown.status) == ("/v1/messages", "completed")
        assert shown.usage is not None
        message = (await results_of(client, await ended(client, batch)))["r0"].result
        assert message.type == "succeeded"
        used = message.message.usage
        read = used.input_tokens + (used.cache_read_input_tokens or 0)
        assert (shown.usage.input_tokens, shown.usage.output_tokens) == (read, used.output_tokens)


@TABLE.row(
    "Message batches", "a file with lines for `/v1/messages` is a batch of both clients", Profile.RELAXED
)
async def ninth_endpoint(api: Api) -> None:
    line: dict[str, object] = {"custom_id": "r0", "method": "POST", "url": "/v1/messages", "body": params()}
    file = await sent(api.client, jsonl([line]))
    batch = await api.client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/messages",  # pyright: ignore[reportArgumentType] - the type has OpenAI's endpoints only
        completion_window="24h",
    )
    await openai_ended(api.client, batch.id)
    async with client_of(api) as client:
        found = await client.messages.batches.retrieve("msg" + batch.id)
        assert (found.processing_status, found.request_counts.succeeded) == ("ended", 1)
        assert (await results_of(client, found))["r0"].result.type == "succeeded"


@TABLE.row(
    "Message batches", "counts stay 0 until the end, and no field is added to Anthropic's", Profile.STRICT
)
async def strict(api: Api) -> None:
    async with client_of(api) as client, api.stack.backend.hold(MODELS[1]):
        batch = await client.messages.batches.create(requests=requests(params(), params(model=MODELS[1])))
        openai = batch.id.removeprefix("msg")

        async def one_is_settled() -> bool:
            counts = (await api.client.batches.retrieve(openai)).request_counts
            return counts is not None and counts.completed == 1

        await until(one_is_settled)
        async with http_client(root(api), {**VERSION, "X-Tenant": api.profile.value}) as http:
            shown = (await http.get(f"{PATH}/{batch.id}")).json()
    assert shown.keys() == MessageBatch.model_fields.keys()
    assert shown["request_counts"] == {
        "processing": 2,
        "succeeded": 0,
        "errored": 0,
        "canceled": 0,
        "expired": 0,
    }


@TABLE.row(
    "Message batches", "an invalid list of requests is `invalid_request_error`, and says where it is wrong"
)
async def refused(api: Api) -> None:
    good = {"custom_id": "a", "params": params()}
    headers = {**VERSION, "X-Tenant": api.profile.value, "Content-Type": "application/json"}
    wrong: list[tuple[str, str]] = [
        (json.dumps({"requests": []}), "at least 1 item"),
        (json.dumps({"requests": [good, good]}), "requests.1.custom_id: 'a' is repeated"),
        (
            json.dumps({"requests": [{**good, "custom_id": "a b"}]}),
            "requests.0.custom_id: String should match",
        ),
        (json.dumps({"requests": [{"custom_id": "a"}]}), "requests.0.params: Field required"),
        (json.dumps({"requests": [good]})[:-20], "it ends before the list of requests does"),
    ]
    async with http_client(root(api)) as http:
        for body, words in wrong:
            answer = await http.post(PATH, content=body, headers=headers)
            error = answer.json()
            assert (answer.status_code, error["type"], sorted(error)) == (
                400,
                "error",
                ["error", "request_id", "type"],
            )
            assert (error["error"]["type"], words in error["error"]["message"]) == (
                "invalid_request_error",
                True,
            )
            assert error["request_id"] == answer.headers["request-id"]
        del headers["anthropic-version"]
        answer = await http.post(PATH, content=json.dumps({"requests": [good]}), headers=headers)
        assert (answer.status_code, "anthropic-version" in answer.json()["error"]["message"]) == (400, True)


@TABLE.row("Message batches", "a batch of another tenant, or of another endpoint, is `not_found_error`")
async def not_found(api: Api) -> None:
    async with client_of(api) as client, client_of(api, tenant=a_tenant()) as other:
        batch = await client.messages.batches.create(requests=requests(params()))
        for missing in (batch.id, "msgbatch_" + "0" * 32, "msgbatch_1"):
            with pytest.raises(anthropic.NotFoundError) as unknown:
                await other.messages.batches.retrieve(missing)
            assert unknown.value.type == "not_found_error"
        with pytest.raises(anthropic.NotFoundError):
            await other.messages.batches.list(after_id=batch.id)


@TABLE.row("Message batches", "a batch over a quota ends with a result for each request that says so")
async def over_quota(api: Api) -> None:
    async with another(api, enqueued_tokens=1) as openai:
        tenant = str(openai.default_headers["X-Tenant"])
        async with client_of(api, tenant=tenant) as client:
            batch = await client.messages.batches.create(requests=requests(params("a"), params("b")))
            batch = await ended(client, batch)
            assert batch.request_counts.errored == 2
            for result in (await results_of(client, batch)).values():
                assert result.result.type == "errored"
                assert "Enqueued tokens limit reached" in result.result.error.error.message


@TIGHT_TABLE.row("Message batches", "too many requests, or too many bytes, are `request_too_large`")
async def too_large(api: Api) -> None:
    async with client_of(api) as client:
        for every in ([params()] * (_REQUESTS + 1), [params("x" * (_BYTES // 3))] * 3):
            with pytest.raises(anthropic.ContentTooLargeError) as large:
                await client.messages.batches.create(requests=requests(*every))
            assert (large.value.status_code, large.value.type) == (413, "request_too_large")
        most = await client.messages.batches.create(requests=requests(*[params()] * _REQUESTS))
        assert (await ended(client, most)).request_counts.succeeded == _REQUESTS


@KEYS_TABLE.row(
    "Message batches", "the key is sent in `x-api-key`; without one a call is `authentication_error`"
)
async def keys(api: Api) -> None:
    tenant = a_tenant()
    await operate(api, "tenants", "create", tenant)
    key = (await operate(api, "keys", "create", tenant)).stdout[0]
    async with client_of(api, key) as client, client_of(api, "bw_wrong") as wrong:
        batch = await ended(client, await client.messages.batches.create(requests=requests(params())))
        assert (await results_of(client, batch))["r0"].result.type == "succeeded"
        with pytest.raises(anthropic.AuthenticationError) as denied:
            await wrong.messages.batches.retrieve(batch.id)
        assert denied.value.type == "authentication_error"
    async with http_client(root(api), VERSION) as http:
        answer: httpx.Response = await http.get(PATH)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
