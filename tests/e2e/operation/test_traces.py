"""A batch that runs through the whole stack leaves one OpenTelemetry trace."""

from collections import Counter
from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.clients import http_client
from tests.constants import with_constants
from tests.e2e.batches import CHAT, chat_line, chat_lines, ended, submit, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.fakes.collector import Collector, Spanned, collector

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SECRET = "sk-planted-in-the-settings"


class Requested(BaseModel):
    key: str
    trace: str | None


class Ledger(BaseModel):
    entries: list[Requested]


class Traced:
    def __init__(self, stack: Stack, spans: Collector) -> None:
        self.stack, self.spans = stack, spans

    def client(self) -> AsyncOpenAI:
        return self.stack.client("traced")

    async def traceparents(self) -> list[str | None]:
        """Return the traceparent header of each request that the backend received; None if it is missing."""
        async with http_client() as http:
            answer = await http.get(self.stack.simulator + "/admin/ledger")
        return [entry.trace for entry in Ledger.model_validate_json(answer.content).entries]

    async def root(self, batch_id: str, *, slices: int, last: str = "finalize") -> Spanned:
        """Wait until the trace of the batch is complete, and return its root span.

        Each worker sends its own spans, in the order in which they end. So the trace is complete when the
        span of each activity has arrived.

        Args:
            slices: number of slices that must have ended.
            last: name of the last activity.
        """

        async def is_whole() -> bool:
            ends = Counter(span.name for span in self.spans.of(batch_id) if _is_last(span))
            return {"process-batch", "ingest", last} <= ends.keys() and ends["run_slice"] >= slices

        await until(is_whole)
        return next(span for span in self.spans.named("process-batch") if span in self.spans.of(batch_id))

    def trace_of(self, root: Spanned) -> list[Spanned]:
        return [span for span in self.spans.spans if span.trace == root.trace]


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    with collector() as spans:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": spans.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-key=collector-key",
            "BATCHWRIGHT_BACKEND_API_KEY": SECRET,
            # A slice has one turn, and is sent once even on a busy machine.
            "BATCHWRIGHT_SLICE_SECONDS": "600",
            "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "60",
            # So that a model run soon hands its slices over to another one.
            **with_constants(max_slice_lines=20, outstanding_slices=2, hand_over_events=15),
        }
        with dev("--workers", "2", data=None, **settings) as stack:
            yield Traced(stack, spans)


def _is_last(span: Spanned) -> bool:
    """Return True if the span is the last one of its activity.

    If a worker stops running a slice before it is completed, another span of this slice follows.
    """
    return span.name != "run_slice" or span.attributes["batchwright.end"] == "completed"


async def test_a_batch_is_one_trace_from_the_call_to_its_requests(traced: Traced) -> None:
    async with traced.client() as client:
        batch = await ended(client, (await submit(client, chat_lines(MODELS, each=10))).id)
        root = await traced.root(batch.id, slices=3)

        async def is_called() -> bool:  # the API sends its spans by itself
            return any(span.name == "POST /v1/batches" for span in traced.trace_of(root))

        await until(is_called)
    [call] = [span for span in traced.trace_of(root) if span.name == "POST /v1/batches"]
    spans = {span.id: span for span in traced.trace_of(root)}
    parents = Counter((span.name, spans[span.parent].name) for span in spans.values() if span.parent)
    assert call.parent == ""
    assert parents == {
        ("process-batch", "POST /v1/batches"): 1,
        ("ingest", "process-batch"): 1,
        ("run_slice", "process-batch"): 3,
        ("finalize", "process-batch"): 1,
        (f"POST {CHAT}", "run_slice"): 30,
        **{pair: count for pair, count in parents.items() if pair[0].startswith("storage.")},
    }
    stored = {pair for pair in parents if pair[0].startswith("storage.")}
    assert {
        ("storage.Store", "ingest"),
        ("storage.Store", "run_slice"),
        ("storage.Store", "finalize"),
    } <= stored
    assert {("storage.Retrieve", "run_slice"), ("storage.Delete", "finalize")} <= stored
    assert {span.service for span in spans.values()} == {"batchwright-api", "batchwright-worker"}
    assert not [span for span in spans.values() if span.has_failed]


async def test_the_root_span_has_the_attributes_and_the_duration_of_the_batch(traced: Traced) -> None:
    async with traced.client() as client:
        lines = [*chat_lines(MODELS, each=2), chat_line("stranger", "nobody-serves-this")]
        batch = await ended(client, (await submit(client, lines)).id)
        root = await traced.root(batch.id, slices=3)
    assert {
        name: root.attributes[name] for name in root.attributes if not name.startswith("batchwright.")
    } == {
        "batch.id": batch.id,
        "tenant.id": "traced",
        "file.id": batch.input_file_id,
        "batch.output_file.id": batch.output_file_id,
        "batch.error_file.id": batch.error_file_id,
        "batch.request.total": 7,
        "batch.request.completed": 6,
        "batch.request.failed": 1,
    }
    inside = [span for span in traced.trace_of(root) if span.parent == root.id]
    assert root.start <= min(span.start for span in inside)
    assert root.end >= max(span.start for span in inside)


async def test_the_backend_receives_the_trace_context_of_each_request(traced: Traced) -> None:
    async with traced.client() as client:
        batch = await ended(client, (await submit(client, chat_lines(MODELS[:1], each=20))).id)
        root = await traced.root(batch.id, slices=1)
    requests = [span for span in traced.trace_of(root) if span.name == f"POST {CHAT}"]
    traceparents = set(await traced.traceparents())
    assert len(requests) == 20
    assert {f"00-{span.trace}-{span.id}-03" for span in requests} <= traceparents
    for span in requests:
        assert span.attributes["batch.id"] == batch.id
        assert span.attributes["gen_ai.request.model"] == MODELS[0]
        assert span.attributes["http.response.status_code"] == 200


async def test_a_model_run_that_continues_another_one_stays_in_the_trace(traced: Traced) -> None:
    async with traced.client() as client:
        batch = await ended(client, (await submit(client, chat_lines(MODELS[:1], each=500))).id)
        root = await traced.root(batch.id, slices=25)
    turns = [span for span in traced.spans.of(batch.id) if span.name == "run_slice"]
    assert max(int(span.attributes.get("batchwright.generation", 0)) for span in turns) > 0
    assert {(span.trace, span.parent) for span in turns} == {(root.trace, root.id)}


async def test_a_request_with_a_trace_context_stays_in_its_trace(traced: Traced) -> None:
    theirs = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with traced.client() as client:
        client = client.with_options(default_headers={"traceparent": f"00-{theirs}-00f067aa0ba902b7-01"})
        batch = await ended(client, (await submit(client, chat_lines(MODELS[:1], each=2))).id)
        root = await traced.root(batch.id, slices=1)
    assert root.trace == theirs


async def test_a_batch_that_fails_validation_has_a_failed_root_span(traced: Traced) -> None:
    async with traced.client() as client:
        line = chat_line("same", MODELS[0])
        batch = await ended(client, (await submit(client, [line, line])).id)
        root = await traced.root(batch.id, slices=0, last="ingest")
    assert root.has_failed
    assert root.attributes["batchwright.status"] == "failed"


async def test_the_span_of_a_failed_request_has_the_error(traced: Traced) -> None:

    async def has_failed() -> bool:
        return any(entry.statuses.get("500") for entry in (await traced.stack.backend.ledger()).entries)

    async with traced.client() as client:
        await traced.stack.faults(model=MODELS[1], kind="500", rate=1.0)
        batch = await submit(client, chat_lines(MODELS[:2], each=30))
        await until(has_failed)
        await traced.stack.heal()
        await ended(client, batch.id)
        root = await traced.root(batch.id, slices=4)
    failed = [span for span in traced.trace_of(root) if span.name == f"POST {CHAT}" and span.has_failed]
    assert {span.attributes["http.response.status_code"] for span in failed} == {500}
    assert {span.attributes["gen_ai.request.model"] for span in failed} == {MODELS[1]}


async def test_a_deferred_slice_leaves_a_span_linked_to_its_turn(traced: Traced) -> None:
    async with traced.client() as client:
        await traced.stack.faults(model=MODELS[2], kind="503", rate=1.0)
        batch = await submit(client, chat_lines(MODELS[2:3], each=150))

        async def is_deferred() -> bool:
            return any(span.name == "re-enqueue" for span in traced.spans.of(batch.id))

        await until(is_deferred)
        await traced.stack.heal()
        await ended(client, batch.id)
        root = await traced.root(batch.id, slices=8)

        def deferrals() -> list[Spanned]:
            return [span for span in traced.spans.of(batch.id) if span.name == "re-enqueue"]

        def turns() -> list[Spanned]:
            return [span for span in traced.trace_of(root) if span.name == "run_slice"]

        async def have_arrived() -> bool:
            return {link for span in deferrals() for link in span.links} < {span.id for span in turns()}

        await until(have_arrived)
    again = deferrals()
    assert not [span for span in turns() if span.has_failed]
    assert {span.attributes["batchwright.reason"] for span in again} == {"Deferred"}
    assert {span.parent for span in again} == {""}


async def test_no_span_has_a_secret_or_a_body_and_the_collector_gets_its_key(traced: Traced) -> None:
    async with traced.client() as client:
        batch = await ended(client, (await submit(client, [chat_line("a", MODELS[0], "my-prompt")])).id)
        await traced.root(batch.id, slices=1)
    everything = repr(traced.spans.spans)
    assert SECRET not in everything
    assert "collector-key" not in everything
    assert "my-prompt" not in everything
    assert traced.spans.headers["x-key"] == "collector-key"
