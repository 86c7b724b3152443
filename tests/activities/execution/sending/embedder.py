"""An execution fixture whose backend answers requests for embeddings."""

import json
from collections.abc import Callable

import httpx
from pydantic import BaseModel

from batchwright.contracts.terms import Endpoint
from batchwright.rules.results.segment_format import RecordKind
from tests.activities.execution.fixture import ExecutionFixture, ok, plan_slice, request


def body_of(text: str) -> bytes:
    return json.dumps({"model": "m", "input": text}).encode()


def line_of(text: str) -> bytes:
    return b'{"custom_id":"c-%s","body":%s}' % (text.encode(), body_of(text))


def embedded(inputs: list[str]) -> httpx.Response:
    """Return a response with an embedding for each input, in reverse order.

    So only the field `index` of an embedding shows to which input it belongs.
    """
    items = [{"index": place, "embedding": [len(text), place]} for place, text in enumerate(inputs)]
    usage = {"prompt_tokens": 10 * len(inputs), "total_tokens": 10 * len(inputs)}
    return httpx.Response(200, json={"object": "list", "data": items[::-1], "model": "m", "usage": usage})


class _EmbeddingsBody(BaseModel):
    input: str | list[str] = ""


def inputs_of(body: bytes) -> list[str]:
    own = _EmbeddingsBody.model_validate_json(body).input
    return [own] if isinstance(own, str) else own


class _Answer(BaseModel):
    class Body(BaseModel):
        class Item(BaseModel):
            index: int
            embedding: list[int]

        data: list[Item] = []
        usage: dict[str, int] = {}

    status_code: int
    body: Body


class _Line(BaseModel):
    response: _Answer


class Embedder:
    """A fixture with an embeddings backend. `requests` has the inputs of each request."""

    def __init__(self, refuse: Callable[[list[str]], httpx.Response | None], share: int = 4) -> None:
        models = {"m": {"inputs_per_request": share, "in_flight": 16}}
        self.execution = ExecutionFixture(ok, models=models, max_backoff_seconds=0.002)
        self.execution.answer = self.answer
        self.requests: list[list[str]] = []
        self._refuse = refuse

    async def embed(self, *texts: str) -> list[_Answer]:
        """Run a slice with one line for each text. Return the responses, in the order of the lines."""
        await plan_slice(self.execution.storage, [line_of(text) for text in texts])
        while True:
            result = await self.execution.turn(request(endpoint=Endpoint.EMBEDDINGS))
            if result is not None and result.finished:
                break
            self.execution.next_attempt()
        settled = await self.execution.settled()
        return [_Line.model_validate_json(settled[offset].payload).response for offset in sorted(settled)]

    async def attempts(self) -> int:
        return sum(record.kind is RecordKind.ATTEMPT for record in await self.execution.records())

    async def answer(self, http_request: httpx.Request) -> httpx.Response:
        inputs = inputs_of(http_request.content)
        self.requests.append(inputs)
        return self._refuse(inputs) or embedded(inputs)


def lengths(answers: list[_Answer]) -> list[int]:
    """Return the first number of each response's embedding, which is the length of the line's text."""
    return [answer.body.data[0].embedding[0] for answer in answers]


TEXTS = ["x" * number for number in range(1, 11)]
