"""Embedding lines that share requests, on a whole stack whose worker is killed."""

import json

import pytest
from pydantic import BaseModel

from tests.clients import http_client
from tests.e2e.batches import check_conservation, ended, settled, submit
from tests.e2e.stack import MODELS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODEL, LINES, SHARE = MODELS[0], 400, 8
ANSWERED = LINES // SHARE // 2  # requests before the worker is killed
SETTINGS = {"BATCHWRIGHT_MODELS": json.dumps({MODEL: {"inputs_per_request": SHARE, "in_flight": 16}})}


def line(number: int) -> dict[str, object]:
    body = {"model": MODEL, "input": f"text {number}"}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/embeddings", "body": body}


class _Answer(BaseModel):
    class Body(BaseModel):
        class Item(BaseModel):
            index: int
            embedding: list[float]

        class Usage(BaseModel):
            prompt_tokens: int

        data: list[Item]
        usage: Usage

    class Response(BaseModel):
        body: "_Answer.Body"

    custom_id: str
    response: Response


async def times_sent_alone(stack: Stack, number: int) -> list[float]:
    async with http_client() as http:
        answer = await http.post(f"{stack.simulator}/v1/embeddings", json=line(number)["body"])
    return _Answer.Body.model_validate_json(answer.raise_for_status().content).data[0].embedding


async def test_lines_share_requests_and_keep_their_own_answers_through_a_killed_worker() -> None:
    lines = [line(number) for number in range(LINES)]
    with dev("--workers", "2", data=None, **SETTINGS) as stack:
        async with stack.client() as client:
            await stack.faults(model=MODEL, kind="slow", seconds=0.3, count=ANSWERED)
            await stack.faults(model=MODEL, kind="hold")  # the rest, until the kill
            batch = await submit(client, lines, endpoint="/v1/embeddings")
            await settled(client, batch.id, ANSWERED)  # at least one line of each request
            stack.kill("worker")
            await stack.heal()
            batch = await ended(client, batch.id)
            await check_conservation(client, batch, lines)
            assert batch.status == "completed"
            assert batch.output_file_id is not None
            output = (await client.files.content(batch.output_file_id)).text
        answers = [_Answer.model_validate_json(text) for text in output.splitlines()]
        assert len(answers) == LINES
        requests = await stack.requests_by_id()
        assert sum(requests.values()) <= 2 * LINES / SHARE
        for number in (0, 7, 123, LINES - 1):
            assert answers[number].response.body.data[0].embedding == await times_sent_alone(stack, number)
        assert {answer.response.body.data[0].index for answer in answers} == {0}
        assert batch.usage is not None
        assert sum(answer.response.body.usage.prompt_tokens for answer in answers) == batch.usage.input_tokens
