"""Embedding lines that share a request: what is sent, which line gets which result, and which lines fail."""

import asyncio
import json
from collections.abc import Sequence

import httpx
import pytest
from temporalio.activity import ActivityCancellationDetails

from batchwright.activities.execution.slice_state.lease import HeartbeatReply
from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.contracts.terms import Endpoint
from batchwright.inference.backend_client import parse_response
from batchwright.inference.microbatch_sender import MicrobatchPolicy, MicrobatchSender
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.sender_choice import MicrobatchSenders
from batchwright.inference.transport.base import Header, TargetUrl
from batchwright.rules.backends.microbatch import EmbeddingsAdapter
from batchwright.rules.dispatch import retry_policy
from batchwright.rules.limits.rate_allocation import Pacing
from batchwright.telemetry.metrics import Metrics
from tests.activities.execution.fixture import ExecutionFixture, eventually, ok, plan_slice, request
from tests.activities.execution.sending.embedder import (
    TEXTS,
    Embedder,
    body_of,
    embedded,
    inputs_of,
    lengths,
    line_of,
)
from tests.fakes.rates import FixedRates
from tests.fakes.settings import load

pytestmark = pytest.mark.usefixtures("skipped_waits")

TARGET = TargetUrl.of("http://backend/v1/embeddings")


async def test_lines_share_requests_and_each_gets_its_own_answer() -> None:
    embedder = Embedder(lambda inputs: None)
    answers = await embedder.embed(*TEXTS)
    assert sorted(len(inputs) for inputs in embedder.requests) == [2, 4, 4]
    assert lengths(answers) == list(range(1, 11))
    assert all(answer.body.data[0].index == 0 for answer in answers)
    assert sum(answer.body.usage["prompt_tokens"] for answer in answers) == 100


async def test_without_the_setting_each_line_is_a_request() -> None:
    embedder = Embedder(lambda inputs: None, share=1)
    await embedder.embed(*TEXTS)
    assert sorted(embedder.requests) == [[text] for text in TEXTS]


async def test_a_refused_line_does_not_fail_the_others_of_its_group() -> None:
    embedder = Embedder(lambda inputs: httpx.Response(400, json={"error": {}}) if "xxx" in inputs else None)
    answers = await embedder.embed(*TEXTS)
    assert [answer.status_code for answer in answers] == [200, 200, 400, *[200] * 7]
    assert embedder.requests.count(["xxx"]) == 1


async def test_a_failed_group_is_retried_then_halved_and_costs_no_line_an_attempt() -> None:
    embedder = Embedder(lambda inputs: httpx.Response(500, json={}) if len(inputs) > 2 else None)
    answers = await embedder.embed(*TEXTS[:4])
    assert lengths(answers) == [1, 2, 3, 4]
    assert [len(inputs) for inputs in embedder.requests] == [4, 4, 2, 2]
    assert await embedder.attempts() == 0


async def test_a_line_that_breaks_every_group_fails_alone_after_its_own_attempts() -> None:
    embedder = Embedder(lambda inputs: httpx.Response(500, json={}) if "xx" in inputs else None)
    answers = await embedder.embed(*TEXTS[:4])
    assert [answer.status_code for answer in answers] == [200, 500, 200, 200]
    assert embedder.requests.count(["xx"]) == embedder.execution.settings.max_attempts


async def test_a_busy_backend_costs_time_only() -> None:
    busy = iter([httpx.Response(503), httpx.Response(429)])
    embedder = Embedder(lambda inputs: next(busy, None))
    assert lengths(await embedder.embed(*TEXTS)) == list(range(1, 11))
    assert await embedder.attempts() == 0


async def test_lines_of_an_answer_that_cannot_be_divided_are_sent_one_by_one() -> None:
    def mixed_up(inputs: list[str]) -> httpx.Response | None:
        return embedded(inputs[1:]) if len(inputs) > 1 else None

    embedder = Embedder(mixed_up)
    assert lengths(await embedder.embed(*TEXTS[:4])) == [1, 2, 3, 4]
    assert [len(inputs) for inputs in embedder.requests] == [4, 1, 1, 1, 1]


class Slow:
    """A sender that responds when the test allows it. `cancelled` counts cancelled requests."""

    def __init__(self) -> None:
        self.release, self.requests = asyncio.Event(), asyncio.Event()
        self.cancelled = 0

    async def send(
        self, target: TargetUrl, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Outcome:
        self.requests.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Outcome(retry_policy.SUCCESS, 200, embedded(inputs_of(body)).content)


def no_pause(_repetitions: int) -> float:
    return 0.0


def grouping(sender: Slow) -> MicrobatchSender:
    return MicrobatchSender(sender, EmbeddingsAdapter(), MicrobatchPolicy("m", 2, 1000, no_pause), Metrics())


async def test_a_cancelled_line_leaves_its_group_to_the_others() -> None:
    slow = Slow()
    sender = grouping(slow)
    calls = [asyncio.create_task(sender.send(TARGET, body_of(text), text)) for text in ("a", "bb")]
    await slow.requests.wait()
    calls[0].cancel()
    await asyncio.wait(calls[:1])
    slow.release.set()
    assert (await calls[1]).status == 200
    assert slow.cancelled == 0


async def test_a_line_that_is_cancelled_and_sent_again_in_the_same_group_gets_its_answer() -> None:
    slow = Slow()
    sender = grouping(slow)
    cancelled = asyncio.create_task(sender.send(TARGET, body_of("a"), "same"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    again = asyncio.create_task(sender.send(TARGET, body_of("a"), "same"))
    await slow.requests.wait()
    slow.release.set()
    assert (await again).status == 200


async def test_a_request_is_aborted_when_all_its_lines_are_cancelled() -> None:
    slow = Slow()
    sender = grouping(slow)
    calls = [asyncio.create_task(sender.send(TARGET, body_of(text), text)) for text in ("a", "bb")]
    await slow.requests.wait()
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    await eventually(lambda: slow.cancelled > 0)
    assert (slow.cancelled, [call.cancelled() for call in calls]) == (1, [True, True])


class Refuses(Slow):
    """A sender that refuses shared requests when the test allows it. `sent` has the inputs by request."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[list[str]] = []

    async def send(
        self, target: TargetUrl, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Outcome:
        self.sent.append(inputs_of(body))
        outcome = await super().send(target, body, request_id, extra)
        return outcome if len(inputs_of(body)) == 1 else Outcome(retry_policy.classify(400), 400)


async def test_a_line_that_nobody_waits_for_is_not_sent_alone_when_its_group_is_refused() -> None:
    """The slice of this line has ended. Another worker may run the slice now, and may have sent the line
    already.
    """
    backend = Refuses()
    sender = grouping(backend)
    calls = [asyncio.create_task(sender.send(TARGET, body_of(text), text)) for text in ("a", "bb")]
    await backend.requests.wait()
    calls[0].cancel()
    await asyncio.wait(calls[:1])
    backend.release.set()
    assert (await calls[1]).status == 200
    assert backend.sent == [["a", "bb"], ["bb"]]


async def test_a_failed_group_is_not_sent_again_after_a_cancel() -> None:
    embedder = Embedder(lambda inputs: httpx.Response(500))
    execution = embedder.execution = ExecutionFixture(
        ok,
        models={"m": {"inputs_per_request": 4, "in_flight": 16}},
        initial_backoff_seconds=5.0,
        max_backoff_seconds=5.0,
    )
    execution.answer = embedder.answer
    await plan_slice(execution.storage, [line_of(text) for text in TEXTS[:4]])
    slice = execution.start(request(endpoint=Endpoint.EMBEDDINGS))
    await eventually(lambda: len(embedder.requests) > 0)
    details = ActivityCancellationDetails(cancel_requested=True)
    execution.environment.cancel(cancellation_details=details)
    assert not (await slice).finished
    assert [len(inputs) for inputs in embedder.requests] == [4]


async def test_a_failed_group_is_not_sent_again_while_the_lease_may_be_lost() -> None:
    embedder = Embedder(lambda inputs: httpx.Response(500) if len(inputs) > 1 else None)
    execution = embedder.execution = ExecutionFixture(
        ok,
        models={"m": {"inputs_per_request": 4, "in_flight": 16}},
        initial_backoff_seconds=60.0,
        max_backoff_seconds=60.0,
    )
    execution.answer = embedder.answer
    execution.server.reply = HeartbeatReply.UNREACHABLE
    await plan_slice(execution.storage, [line_of(text) for text in TEXTS[:4]])
    slice = execution.start(request(endpoint=Endpoint.EMBEDDINGS))
    await asyncio.sleep(30)
    before = len(embedder.requests)
    await asyncio.sleep(300)
    assert len(embedder.requests) == before
    execution.server.reply = HeartbeatReply.OK
    assert (await slice).completed == 4


async def test_lines_of_a_failed_group_that_are_sent_again_count_against_the_rate() -> None:
    embedder = Embedder(lambda inputs: httpx.Response(500) if len(inputs) > 1 else None)
    execution = embedder.execution
    execution.context.rates = FixedRates(Pacing(1e6, 4))
    await plan_slice(execution.storage, [line_of(text) for text in TEXTS[:4]])
    assert await execution.turn(request(endpoint=Endpoint.EMBEDDINGS)) is None
    assert sum(len(inputs) for inputs in embedder.requests) == 4


async def test_lines_with_more_tokens_than_a_request_may_have_are_not_joined() -> None:
    slow = Slow()
    slow.release.set()
    sender = MicrobatchSender(slow, EmbeddingsAdapter(), MicrobatchPolicy("m", 8, 3, no_pause), Metrics())
    outcomes = await asyncio.gather(*(sender.send(TARGET, body_of("x" * 10), f"r-{n}") for n in range(3)))
    assert [len(json.loads(outcome.body)["data"]) for outcome in outcomes] == [1, 1, 1]


class Recovers:
    """A sender that at first accepts only requests with one line.

    `sizes` has the number of lines of each request.
    """

    def __init__(self) -> None:
        self.is_ill, self.sizes = True, list[int]()

    async def send(
        self, target: TargetUrl, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Outcome:
        inputs = inputs_of(body)
        self.sizes.append(len(inputs))
        if self.is_ill and len(inputs) > 1:
            return Outcome(retry_policy.classify(503))
        return Outcome(retry_policy.SUCCESS, 200, embedded(inputs).content)


async def test_lines_share_requests_again_some_time_after_failures_shrank_these_to_one() -> None:
    backend = Recovers()
    sender = MicrobatchSender(
        backend, EmbeddingsAdapter(), MicrobatchPolicy("m", 4, 1000, no_pause), Metrics()
    )

    async def embed(lines: int) -> list[int]:
        """Send `lines` lines, and return the number of lines in each request."""
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


async def test_outcomes_of_shared_requests_are_counted() -> None:
    busy = iter([httpx.Response(503), httpx.Response(400, json={})])
    embedder = Embedder(lambda inputs: next(busy, None))
    await embedder.embed(*TEXTS[:4])
    counted = embedder.execution.counted
    assert counted("batchwright_microbatch_requests_total", model="m", category="service_unavailable") == 1
    assert counted("batchwright_microbatch_requests_total", model="m", category="invalid_request") == 1
    put_back = {"category": "service_unavailable", "result": "put_back"}
    assert counted("batchwright_microbatch_requeues_total", model="m", **put_back) == 1
    assert counted("batchwright_microbatch_inputs_total", model="m") == 8
    assert counted("batchwright_microbatch_isolation_fallback_total", model="m") == 1


async def test_failed_groups_are_counted_by_decision() -> None:
    embedder = Embedder(lambda inputs: httpx.Response(500) if len(inputs) > 1 else None)
    await embedder.embed(*TEXTS[:4])
    counted = embedder.execution.counted
    failed = {"model": "m", "category": "upstream_5xx"}
    # Four lines twice, then each half once, then every line alone.
    assert counted("batchwright_microbatch_requests_total", **failed) == 4
    assert counted("batchwright_microbatch_requeues_total", **failed, result="repeated") == 1
    assert counted("batchwright_microbatch_requeues_total", **failed, result="halved") == 3
    assert counted("batchwright_microbatch_retry_delay_seconds_count", **failed) == 4
    assert counted("batchwright_microbatch_inputs_total", model="m") == 12
    assert counted("batchwright_microbatch_isolation_fallback_total", model="m") == 2


@pytest.mark.parametrize("is_shared", [False, True])
async def test_lines_of_several_tenants_share_a_request_only_if_a_setting_allows_it(
    is_shared: bool,
) -> None:
    requests: list[list[str]] = []

    class Plain:
        async def send(
            self, target: TargetUrl, body: bytes, request_id: str, extra: Sequence[Header] = ()
        ) -> Outcome:
            requests.append(inputs_of(body))
            return parse_response(200, {}, embedded(inputs_of(body)).content)

    class At:
        def __init__(self) -> None:
            self.client = Plain()

    models = {"m": {"inputs_per_request": 4}}
    senders, backend = (
        MicrobatchSenders(load(models=models, tenants_share_requests=is_shared), Metrics()),
        At(),
    )
    outcomes = await asyncio.gather(
        *(
            senders.sender_for(backend, "m", Endpoint.EMBEDDINGS, tenant=tenant).send(
                TARGET, body_of(text), f"r-{text}"
            )
            for tenant, text in [("red", "r1"), ("blue", "b1"), ("red", "r2"), ("blue", "b2")]
        )
    )
    assert [outcome.status for outcome in outcomes] == [200] * 4
    together = [["r1", "b1", "r2", "b2"]]
    assert sorted(requests) == (together if is_shared else [["b1", "b2"], ["r1", "r2"]])


@pytest.mark.parametrize("grouped", ["m", "other"])
async def test_a_line_sent_to_a_fallback_is_grouped_by_the_settings_of_the_fallback(
    grouped: str,
) -> None:
    embedder = Embedder(lambda inputs: None)
    execution = embedder.execution = ExecutionFixture(
        ok, models={grouped: {"inputs_per_request": 4, "in_flight": 16}}
    )
    execution.answer = embedder.answer
    execution.backends.add_fallback(
        "m", "other", ModelConfig(backends=[BackendConfig(url="http://fallback")])
    )
    circuit = execution.circuit("m")
    circuit.record_failure(circuit.begin(), "gone", at_once=True)
    await embedder.embed(*TEXTS[:4])
    assert sorted(map(len, embedder.requests)) == ([4] if grouped == "other" else [1] * 4)
