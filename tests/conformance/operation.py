"""What the fleet has sent, and what failed for good: routes of operators, by the official Python client."""

import json
from typing import TypeVar

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError
from pydantic import BaseModel

from api.dead_letters import DeadLetterPage, DeletedLetter, RetriedPage
from api.stats import StatsObject
from tests.conformance.contract import Api, Table
from tests.conformance.requests import done, jsonl
from tests.e2e.batches import chat_line, ended, until
from tests.e2e.stack import MODELS

TABLE = Table()
_Object = TypeVar("_Object", bound=BaseModel)


def exactly(kind: type[_Object], answer: httpx.Response) -> _Object:
    """The object of a 200 whose JSON is its own and nothing else."""
    assert answer.status_code == 200
    found = kind.model_validate_json(answer.content, strict=True)
    assert json.loads(found.model_dump_json()) == answer.json()
    return found


def operators(api: Api) -> AsyncOpenAI:
    return api.client.with_options(base_url=api.url.removesuffix("/v1") + "/admin")


@TABLE.row("Operation", "`/v1/stats` adds up what all workers sent, by backend and by model")
async def stats(api: Api) -> None:
    lines = [chat_line(f"a-{n}", MODELS[1]) for n in range(5)]

    async def asked() -> int:
        found = exactly(StatsObject, await api.client.get("/stats", cast_to=httpx.Response))
        assert found.workers >= 1
        assert found.requests.total == found.requests.success + found.requests.errors
        assert {model.name for model in found.models} == set(MODELS)
        assert sum(backend.requests for backend in found.backends) == found.requests.total
        return next(model.requests for model in found.models if model.name == MODELS[1])

    before = await asked()
    assert (await done(api.client, jsonl(lines))).status == "completed"

    async def counted() -> bool:
        return await asked() >= before + len(lines)

    await until(counted)


@TABLE.row("Operation", "a line that used up its attempts is a dead letter: listed, retried once, deleted")
async def dead_letters(api: Api) -> None:
    good, poison = chat_line("good", MODELS[0]), chat_line("poison", MODELS[0], user="sim:500 poison")
    batch = await done(api.client, jsonl([good, poison]))
    admin = operators(api)
    listing = f"/dlq?batch_id={batch.id}"
    [letter] = exactly(DeadLetterPage, await admin.get(listing, cast_to=httpx.Response)).data
    assert (letter.custom_id, letter.model, letter.error.status_code) == ("poison", MODELS[0], 500)
    retry = f"/dlq/{letter.id}/retry"
    first, again = [(await admin.post(retry, cast_to=httpx.Response)).json() for _ in range(2)]
    assert first["id"] == again["id"]
    rest = await admin.post("/dlq/retry-all", cast_to=httpx.Response, body={"batch_id": batch.id})
    assert exactly(RetriedPage, rest).data == []
    counts = (await ended(api.client, first["id"])).request_counts
    assert counts is not None
    assert (counts.total, counts.failed) == (1, 1)
    one = f"/dlq/{letter.id}"
    assert exactly(DeletedLetter, await admin.delete(one, cast_to=httpx.Response)).id == letter.id
    with pytest.raises(NotFoundError):
        await admin.delete(one, cast_to=httpx.Response)
    assert exactly(DeadLetterPage, await admin.get(listing, cast_to=httpx.Response)).data == []
