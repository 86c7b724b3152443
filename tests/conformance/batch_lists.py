"""Checks of lists of batches with the official Python client: pages, filters and query parameters."""

import asyncio
from uuid import uuid4

import pytest
from openai import BadRequestError, NotFoundError

from batchwright.contracts.terms import Profile
from tests.conformance.contract import Api, Table
from tests.conformance.requests import LINES, NOWHERE, created, done, jsonl, sent
from tests.e2e.batches import CHAT, ended
from tests.e2e.stack import MODELS

TABLE = Table()


@TABLE.row("Batches", "lists are paged by id, newest first; an unknown `after` is 404")
async def pages(api: Api) -> None:
    batch_ids = [(await created(api.client)).id for _ in range(3)]
    listed = [batch.id async for batch in api.client.batches.list(limit=2)]
    assert listed[:3] == batch_ids[::-1]
    assert len(set(listed)) == len(listed)
    page = await api.client.batches.list(limit=1, after=batch_ids[2])
    assert ([batch.id for batch in page.data], page.has_more) == ([batch_ids[1]], True)
    with pytest.raises(NotFoundError):
        await api.client.batches.list(after=NOWHERE)
    await asyncio.gather(*(ended(api.client, batch_id) for batch_id in batch_ids))


@TABLE.row(
    "Batches", "lists are filtered by `status`, `model`, `created_after`, `created_before`, `metadata[key]`"
)
async def filters(api: Api) -> None:
    file = await sent(api.client)
    batch = await api.client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"run": file.id}
    )
    await ended(api.client, batch.id)
    run = {"metadata[run]": file.id}

    async def listed(query: dict[str, object]) -> list[str]:
        return [found.id async for found in api.client.batches.list(limit=1, extra_query=query)]

    times = {"created_after": batch.created_at, "created_before": batch.created_at + 1}
    assert await listed({**run, **times, "status": "completed", "model": MODELS[0]}) == [batch.id]
    assert await listed({**run, "status": "failed"}) == []
    assert await listed({**run, "created_before": batch.created_at}) == []
    with pytest.raises(BadRequestError, match="Supported values are") as error:
        await listed({"status": "done"})
    assert error.value.param == "status"


@TABLE.row("Batches", "lists are filtered by the `custom_id` of a line, together with other filters")
async def batches_of_a_line(api: Api) -> None:
    lines = [{**LINES[0], "custom_id": f"ü & {uuid4().hex}"} for _ in range(2)]
    (first, second), both = [line["custom_id"] for line in lines], jsonl(lines)
    batches = [await done(api.client, content) for content in (jsonl(lines[:1]), both)]

    async def listed(query: dict[str, object]) -> list[str]:
        return [found.id async for found in api.client.batches.list(limit=1, extra_query=query)]

    assert await listed({"custom_id": first}) == [batches[1].id, batches[0].id]
    assert await listed({"custom_id": second, "status": "completed"}) == [batches[1].id]
    assert await listed({"custom_id": second, "status": "failed"}) == []
    assert await listed({"custom_id": uuid4().hex}) == []
    with pytest.raises(BadRequestError, match="1 to 1024 characters") as error:
        await listed({"custom_id": ""})
    assert error.value.param == "custom_id"


@TABLE.row("Batches", "an unknown query parameter is refused", Profile.STRICT)
async def unknown_query_parameters(api: Api) -> None:
    with pytest.raises(BadRequestError) as error:
        await api.client.batches.list(extra_query={"stauts": "failed"})
    assert (error.value.code, error.value.param) == ("unknown_parameter", "stauts")


@TABLE.row("Batches", "a response header names unknown query parameters", Profile.RELAXED)
async def ignored_query_parameters(api: Api) -> None:
    answer = await api.client.batches.with_raw_response.list(extra_query={"stauts": "failed"})
    assert answer.headers["x-batchwright-warning"] == "Ignored query parameters: stauts"
