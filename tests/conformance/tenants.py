"""Checks of a tenant's limits and visibility with the official Python client."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from secrets import token_hex

import pytest
from openai import AsyncOpenAI, NotFoundError, RateLimitError
from openai.types import Batch

from tests.clients import http_client
from tests.conformance.contract import Api, Table
from tests.conformance.requests import CONTENT, created, done, jsonl, sent
from tests.e2e.batches import CHAT, chat_lines, ended, lines_of
from tests.e2e.stack import MODELS

TABLE = Table()


@asynccontextmanager
async def another(api: Api, **quotas: object) -> AsyncGenerator[AsyncOpenAI]:
    """Yield a client of a new tenant that has these quotas."""
    tenant = f"tenant-{token_hex(4)}"
    if quotas:
        async with http_client() as http:
            url = api.url.removesuffix("/v1") + "/admin/quotas"
            (await http.put(url, json={"tenant": tenant, **quotas})).raise_for_status()
    async with api.stack.client(tenant) as client:
        client.base_url = api.url
        yield client.with_options(max_retries=0)


def codes(batch: Batch) -> list[tuple[str | None, str | None, int | None]]:
    return [(error.code, error.param, error.line) for error in (batch.errors and batch.errors.data) or []]


@TABLE.row("Batches", "a batch above the enqueued quota fails with `token_limit_exceeded`; others do not")
async def enqueued(api: Api) -> None:
    async with another(api, enqueued_tokens=100) as client:
        over = await done(client, jsonl(chat_lines(MODELS[:1], each=20)))
        assert (over.status, codes(over)) == ("failed", [("token_limit_exceeded", None, None)])
        assert (await done(client, jsonl(chat_lines(MODELS[:1], each=2)))).status == "completed"


@TABLE.row("Errors", "a quota that is used up is 429 with `Retry-After` and code `rate_limit_exceeded`")
async def used_up(api: Api) -> None:
    async with another(api, live_batches=1, requests_per_minute=4) as client:
        await api.stack.faults(model=MODELS[0], kind="hang", rate=1.0)
        first = await created(client)
        with pytest.raises(RateLimitError) as batches:
            await client.batches.create(
                input_file_id=first.input_file_id, endpoint=CHAT, completion_window="24h"
            )
        await client.batches.cancel(first.id)

        async def request_until_refused() -> None:
            while True:  # on a slow machine, the quota has room again meanwhile
                await client.files.list()

        with pytest.raises(RateLimitError) as requests:
            await request_until_refused()
    for refused in (batches.value, requests.value):
        assert (refused.type, refused.code, refused.param) == ("requests", "rate_limit_exceeded", None)
        assert 0 < int(refused.response.headers["retry-after"]) <= 60


@TABLE.row("Models", "a model that the tenant may not use is not listed; its lines are `policy_rejected`")
async def permissions(api: Api) -> None:
    async with another(api, models=[MODELS[0]]) as client:
        assert [model.id async for model in client.models.list()] == [MODELS[0]]
        with pytest.raises(NotFoundError) as unknown:
            await client.models.retrieve(MODELS[1])
        assert unknown.value.code == "model_not_found"
        batch = await done(client, jsonl(chat_lines(MODELS[:2], each=2)))
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 4, "completed": 2, "failed": 2}
        errors = [line.error for line in await lines_of(client, batch.error_file_id)]
        assert [error and error.code for error in errors] == ["policy_rejected"] * 2


@TABLE.row(
    "Errors", "objects of another tenant behave like unknown ones: 404, not listed, not usable as input"
)
async def foreign(api: Api) -> None:
    file = await sent(api.client)
    batch = await created(api.client)
    upload = await api.client.uploads.create(
        bytes=len(CONTENT), filename="a", mime_type="application/jsonl", purpose="batch"
    )
    async with another(api) as client:
        for call, id in (
            (client.files.retrieve, file.id),
            (client.files.content, file.id),
            (client.files.delete, file.id),
            (client.batches.retrieve, batch.id),
            (client.batches.cancel, batch.id),
            (client.uploads.cancel, upload.id),
        ):
            with pytest.raises(NotFoundError):
                await call(id)
        assert [one async for one in client.files.list()] == []
        assert [one async for one in client.batches.list()] == []
        refused = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        assert codes(await ended(client, refused.id)) == [("invalid_request", "file_id", None)]
    await ended(api.client, batch.id)
