"""Lines of embeddings that share requests: what is asked, who gets what, and who pays for failures."""

import asyncio
import json
from collections.abc import Callable, Sequence

import httpx
import pytest
from pydantic import BaseModel

from batchwright.contracts.openai import Endpoint
from batchwright.inference.engine import Header, Target
from batchwright.inference.grouping import GroupingSender
from batchwright.inference.outcomes import Outcome
from batchwright.rules import retries
from batchwright.rules.microbatch import Embeddings
from batchwright.rules.segments import Kind
from batchwright.telemetry.metrics import Metrics
from tests.activities.execution_house import House, eventually, ok, plan_slice, request

pytestmark = pytest.mark.usefixtures("skipped_waits")

TARGET = Target.of("http://backend/v1/embeddings")


def body_of(text: str) -> bytes:
    return json.dumps({"model": "m", "input": text}).encode()


def line_of(text: str) -> bytes:
    return b'{"custom_id":"c-%s","body":%s}' % (text.encode(), body_of(text))


def embedded(inputs: list[str]) -> httpx.Response:
    """In reverse order: only the index says whose it is."""
    items = [{"index": place, "embedding": [len(text), place]} for place, text in enumerate(inputs)]
    usage = {"prompt_tokens": 10 * len(inputs), "total_tokens": 10 * len(inputs)}
    return httpx.Response(200, json={"object": "list", "data": items[::-1], "model": "m", "usage": usage})


class _Asked(BaseModel):
    input: str | list[str] = ""


def inputs_of(body: bytes) -> list[str]:
    own = _Asked.model_validate_json(body).input
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
    """A house with a backend of embeddings; `asked` are the inputs of each request."""

    def __init__(self, refuse: Callable[[list[str]], httpx.Response | None], share: int = 4) -> None:
        models = {"m": {"inputs_per_request": share, "in_flight": 16}}
        self.house = House(ok, models=models, max_backoff_seconds=0.002)
        self.house.answer = self._answer
        self.asked: list[list[str]] = []
        self._refuse = refuse

    async def embed(self, *texts: str) -> list[_Answer]:
        """The answers, in the order of the lines."""
        await plan_slice(self.house.storage, [line_of(text) for text in texts])
        while True:
            result = await self.house.turn(request(endpoint=Endpoint.EMBEDDINGS))
            if result is not None and result.finished:
                break
            self.house.next_attempt()
        settled = await self.house.settled()
        return [_Line.model_validate_json(settled[offset].payload).response for offset in sorted(settled)]

    async def attempts(self) -> int:
        return sum(record.kind is Kind.ATTEMPT for record in await self.house.records())

    async def _answer(self, asked: httpx.Request) -> httpx.Response:
        inputs = inputs_of(asked.content)
        self.asked.append(inputs)
        return self._refuse(inputs) or embedded(inputs)


def lengths(answers: list[_Answer]) -> list[int]:
    """What the backend made of each line's text."""
    return [answer.body.data[0].embedding[0] for answer in answers]


TEXTS = ["x" * number for number in range(1, 11)]


async def test_lines_share_requests_and_each_gets_its_own_answer() -> None:
    embedder = Embedder(lambda inputs: None)
    answers = await embedder.embed(*TEXTS)
    assert sorted(len(inputs) for inputs in embedder.asked) == [2, 4, 4]
    assert lengths(answers) == list(range(1, 11))
    assert all(answer.body.data[0].index == 0 for answer in answers)
    assert sum(answer.body.usage["prompt_tokens"] for answer in answers) == 100


async def test_without_the_setting_each_line_is_a_request() -> None:
    embedder = Embedder(lambda inputs: None, share=1)
    await embedder.embed(*TEXTS)
    assert sorted(embedder.asked) == [[text] for text in TEXTS]


async def test_a_line_the_backend_refuses_takes_no_other_with_it() -> None:
    embedder = Embedder(lambda inputs: httpx.Response(400, json={"error": {}}) if "xxx" in inputs else None)
    answers = await embedder.embed(*TEXTS)
    assert [answer.status_code for answer in answers] == [200, 200, 400, *[200] * 7]
    assert embedder.asked.count(["xxx"]) == 1


async def test_a_group_that_breaks_is_asked_again_then_halved_and_costs_no_line_an_attempt() -> None:
    embedder = Embedder(lambda inputs: httpx.Response(500, json={}) if len(inputs) > 2 else None)
    answers = await embedder.embed(*TEXTS[:4])
    assert lengths(answers) == [1, 2, 3, 4]
    assert [len(inputs) for inputs in embedder.asked] == [4, 4, 2, 2]
    assert await embedder.attempts() == 0


async def test_a_line_that_breaks_every_group_fails_alone_after_its_own_attempts() -> None:
    embedder = Embedder(lambda inputs: httpx.Response(500, json={}) if "xx" in inputs else None)
    answers = await embedder.embed(*TEXTS[:4])
    assert [answer.status_code for answer in answers] == [200, 500, 200, 200]
    assert embedder.asked.count(["xx"]) == embedder.house.settings.max_attempts


async def test_a_busy_backend_costs_time_only() -> None:
    busy = iter([httpx.Response(503), httpx.Response(429)])
    embedder = Embedder(lambda inputs: next(busy, None))
    assert lengths(await embedder.embed(*TEXTS)) == list(range(1, 11))
    assert await embedder.attempts() == 0


async def test_an_answer_that_cannot_be_divided_is_asked_for_line_by_line() -> None:
    def mixed_up(inputs: list[str]) -> httpx.Response | None:
        return embedded(inputs[1:]) if len(inputs) > 1 else None

    embedder = Embedder(mixed_up)
    assert lengths(await embedder.embed(*TEXTS[:4])) == [1, 2, 3, 4]
    assert [len(inputs) for inputs in embedder.asked] == [4, 1, 1, 1, 1]


class Slow:
    """A sender that answers when it is told to; `cancelled` counts requests that were given up."""

    def __init__(self) -> None:
        self.release, self.asked = asyncio.Event(), asyncio.Event()
        self.cancelled = 0

    async def send(
        self, target: Target, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Outcome:
        self.asked.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Outcome(retries.SUCCESS, 200, embedded(inputs_of(body)).content)


def grouping(sender: Slow) -> GroupingSender:
    return GroupingSender(
        sender, Embeddings(), model="m", most=2, tokens=1000, pause=lambda _: 0.0, metrics=Metrics()
    )


async def test_a_call_that_is_withdrawn_leaves_its_group_to_the_others() -> None:
    slow = Slow()
    sender = grouping(slow)
    calls = [asyncio.create_task(sender.send(TARGET, body_of(text), text)) for text in ("a", "bb")]
    await slow.asked.wait()
    calls[0].cancel()
    await asyncio.wait(calls[:1])
    slow.release.set()
    assert (await calls[1]).status == 200
    assert slow.cancelled == 0


async def test_a_request_nobody_waits_for_is_given_up() -> None:
    slow = Slow()
    sender = grouping(slow)
    calls = [asyncio.create_task(sender.send(TARGET, body_of(text), text)) for text in ("a", "bb")]
    await slow.asked.wait()
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    await eventually(lambda: slow.cancelled > 0)
    assert (slow.cancelled, [call.cancelled() for call in calls]) == (1, [True, True])


async def test_lines_with_more_tokens_than_a_request_may_have_are_not_joined() -> None:
    slow = Slow()
    slow.release.set()
    sender = GroupingSender(
        slow, Embeddings(), model="m", most=8, tokens=3, pause=lambda _: 0.0, metrics=Metrics()
    )
    outcomes = await asyncio.gather(*(sender.send(TARGET, body_of("x" * 10), f"r-{n}") for n in range(3)))
    assert [len(json.loads(outcome.body)["data"]) for outcome in outcomes] == [1, 1, 1]


class Recovers:
    """A sender that takes no more than one line at a time for a while; `sizes` are of all requests."""

    def __init__(self) -> None:
        self.is_ill, self.sizes = True, list[int]()

    async def send(
        self, target: Target, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Outcome:
        inputs = inputs_of(body)
        self.sizes.append(len(inputs))
        if self.is_ill and len(inputs) > 1:
            return Outcome(retries.judge(503))
        return Outcome(retries.SUCCESS, 200, embedded(inputs).content)


async def test_lines_share_requests_again_some_time_after_failures_shrank_these_to_one() -> None:
    backend = Recovers()
    sender = GroupingSender(
        backend, Embeddings(), model="m", most=4, tokens=1000, pause=lambda _: 0.0, metrics=Metrics()
    )

    async def embed(lines: int) -> list[int]:
        """How many shared each request of them."""
        backend.sizes.clear()
        await asyncio.gather(*(sender.send(TARGET, body_of("x"), f"r-{n}") for n in range(lines)))
        return backend.sizes

    while max(await embed(4)) > 1:
        pass
    assert await embed(50) == [1] * 50
    backend.is_ill = False
    await embed(100)
    await embed(20)
    assert await embed(8) == [4, 4]


async def test_what_became_of_shared_requests_is_counted() -> None:
    busy = iter([httpx.Response(503), httpx.Response(400, json={})])
    embedder = Embedder(lambda inputs: next(busy, None))
    await embedder.embed(*TEXTS[:4])
    counted = embedder.house.counted
    assert counted("batchwright_microbatch_requests_total", model="m", category="service_unavailable") == 1
    assert counted("batchwright_microbatch_requests_total", model="m", category="invalid_request") == 1
    put_back = {"category": "service_unavailable", "result": "put_back"}
    assert counted("batchwright_microbatch_requeues_total", model="m", **put_back) == 1
    assert counted("batchwright_microbatch_inputs_total", model="m") == 8
    assert counted("batchwright_microbatch_isolation_fallback_total", model="m") == 1


async def test_what_a_group_that_fails_comes_to_is_counted_by_decision() -> None:
    embedder = Embedder(lambda inputs: httpx.Response(500) if len(inputs) > 1 else None)
    await embedder.embed(*TEXTS[:4])
    counted = embedder.house.counted
    failed = {"model": "m", "category": "upstream_5xx"}
    # Four lines twice, then each half once, then every line alone.
    assert counted("batchwright_microbatch_requests_total", **failed) == 4
    assert counted("batchwright_microbatch_requeues_total", **failed, result="repeated") == 1
    assert counted("batchwright_microbatch_requeues_total", **failed, result="halved") == 3
    assert counted("batchwright_microbatch_retry_delay_seconds_count", **failed) == 4
    assert counted("batchwright_microbatch_inputs_total", model="m") == 12
    assert counted("batchwright_microbatch_isolation_fallback_total", model="m") == 2
