"""The Temporal gateway with a real server."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from batchwright.api.temporal_gateway import RunMissing, TemporalClientGateway
from batchwright.contracts import search_attributes, temporal_names
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchResult
from batchwright.contracts.temporal_payloads.execution import ModelRun, SliceRequest, SliceResult
from batchwright.contracts.terms import ActivityState, Endpoint
from batchwright.rules.ids import new_batch_id
from batchwright.settings import load
from batchwright.starter.embedded_stack.ports import free_port
from batchwright.temporal import DATA_CONVERTER, TemporalUnavailable, open_connection
from batchwright.workflows.model_run import ModelRunWorkflow
from tests.e2e.batches import until
from tests.integration.temporal.clusters import server
from tests.workflows.stub_activities import StubExecution, share, until_cancelled

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncGenerator[Client]:
    async with server() as environment:
        yield environment.client


@pytest.fixture
def gateway(client: Client) -> TemporalClientGateway:
    return TemporalClientGateway(client, load(temporal_address=client.service_client.config.target_host))


def an_order() -> BatchOrder:
    now = datetime.now(UTC).replace(microsecond=0)
    return BatchOrder(
        batch_id=new_batch_id(),
        tenant="blue",
        input_file_id="file-" + "0" * 32,
        endpoint=Endpoint.EMBEDDINGS,
        completion_window="1h",
        created_at=now,
        deadline=now + timedelta(hours=1),
    )


def run_of(client: Client, order: BatchOrder) -> WorkflowHandle[object, BatchResult]:
    return client.get_workflow_handle(order.batch_id, result_type=BatchResult)


async def signals_of(client: Client, order: BatchOrder) -> list[str]:
    history = await run_of(client, order).fetch_history()
    return [
        event.workflow_execution_signaled_event_attributes.signal_name
        for event in history.events
        if event.HasField("workflow_execution_signaled_event_attributes")
    ]


async def test_a_started_batch_can_be_found_by_its_search_attributes(
    client: Client, gateway: TemporalClientGateway
) -> None:
    order = an_order()
    await gateway.start(order)
    run = await run_of(client, order).describe()
    assert (run.workflow_type, run.task_queue) == ("BatchWorkflow", temporal_names.CONTROL_QUEUE)
    assert run.typed_search_attributes.get(search_attributes.TENANT) == "blue"
    assert run.typed_search_attributes.get(search_attributes.STATUS) == "validating"
    assert run.typed_search_attributes.get(search_attributes.DEADLINE) == order.deadline
    assert await run.static_summary() == "/v1/embeddings within 1h, for tenant blue"


async def test_the_run_gets_its_order_as_it_was_given(client: Client, gateway: TemporalClientGateway) -> None:
    order = an_order()
    await gateway.start(order)
    [started, *_] = (await run_of(client, order).fetch_history()).events
    payloads = started.workflow_execution_started_event_attributes.input.payloads
    assert await DATA_CONVERTER.decode(payloads, [BatchOrder]) == [order]


async def test_the_order_of_a_batch_is_read_from_its_workflow_until_it_ends(
    client: Client, gateway: TemporalClientGateway
) -> None:
    order = an_order()
    assert await gateway.running_order(order.batch_id) is None
    await gateway.start(order)
    assert await gateway.running_order(order.batch_id) == order
    await run_of(client, order).terminate()
    assert await gateway.running_order(order.batch_id) is None


async def test_a_second_start_changes_nothing_even_after_the_end(
    client: Client, gateway: TemporalClientGateway
) -> None:
    order = an_order()
    assert await gateway.start(order)
    first = (await run_of(client, order).describe()).run_id
    assert not await gateway.start(order)
    await run_of(client, order).terminate()
    assert not await gateway.start(order)
    assert (await run_of(client, order).describe()).run_id == first


async def test_signals_are_accepted_while_no_worker_runs(
    client: Client, gateway: TemporalClientGateway
) -> None:
    order = an_order()
    await gateway.start(order)
    await gateway.pause(order.batch_id, 1)
    await gateway.resume(order.batch_id, 2)
    await gateway.cancel(order.batch_id)
    assert await signals_of(client, order) == ["pause", "resume", "cancel"]


async def test_a_signal_to_an_ended_or_unknown_run_is_an_error(
    client: Client, gateway: TemporalClientGateway
) -> None:
    order = an_order()
    with pytest.raises(RunMissing):
        await gateway.cancel(order.batch_id)
    await gateway.start(order)
    await run_of(client, order).terminate()
    with pytest.raises(RunMissing):
        await gateway.cancel(order.batch_id)


async def test_without_a_worker_the_state_is_unknown(gateway: TemporalClientGateway) -> None:
    order = an_order()
    await gateway.start(order)
    assert await gateway.state(order.batch_id) is None
    assert await gateway.state(new_batch_id()) is None


async def test_before_its_end_ingestion_has_no_result(client: Client, gateway: TemporalClientGateway) -> None:
    order = an_order()
    await gateway.start(order)
    assert await gateway.ingested(order.batch_id) is None
    assert await gateway.ingested(new_batch_id()) is None


async def test_a_server_that_answers_passes_the_check(gateway: TemporalClientGateway) -> None:
    await gateway.check()


async def test_an_unknown_namespace_fails_the_check(client: Client) -> None:
    settings = load(temporal_address=client.service_client.config.target_host, temporal_namespace="nowhere")
    client_elsewhere, _ = await open_connection(settings, lazy=True)
    elsewhere = TemporalClientGateway(client_elsewhere, settings)
    with pytest.raises(TemporalUnavailable):
        await elsewhere.check()
    with pytest.raises(TemporalUnavailable):
        await elsewhere.start(an_order())


async def test_an_unreachable_server_is_unavailable_and_not_a_missing_run() -> None:
    settings = load(temporal_address=f"127.0.0.1:{free_port()}")
    client_of_nothing, _ = await open_connection(settings, lazy=True)
    nowhere = TemporalClientGateway(client_of_nothing, settings)
    with pytest.raises(TemporalUnavailable):
        await nowhere.check()
    with pytest.raises(TemporalUnavailable):
        await nowhere.cancel(new_batch_id())


async def test_a_run_has_ended_when_it_is_closed_or_unknown(
    client: Client, gateway: TemporalClientGateway
) -> None:
    order = an_order()
    assert await gateway.has_ended(order.batch_id)
    await gateway.start(order)
    assert not await gateway.has_ended(order.batch_id)
    await run_of(client, order).terminate()
    assert await gateway.has_ended(order.batch_id)


async def test_pending_slices_have_their_numbers_states_and_reasons(
    client: Client, gateway: TemporalClientGateway
) -> None:
    """Model m has a worker that runs two slices at the same time. Model n has no worker."""

    async def waits(request: SliceRequest) -> SliceResult:
        raise ApplicationError("no backend serves it", type="Deferred", next_retry_delay=timedelta(hours=1))

    execution, order = StubExecution(), an_order()
    execution.behaviours = {0: waits, 1: until_cancelled}
    ids = {model: temporal_names.model_run_id(order.batch_id, model) for model in ("m", "n")}
    queue = temporal_names.inference_queue("m")

    async def states() -> list[ActivityState]:
        return [each.state for id in ids.values() for each in await gateway.pending(id)]

    async def have_begun() -> bool:
        return await states() == [ActivityState.WAITING, ActivityState.RUNNING, ActivityState.QUEUED]

    async with (
        Worker(client, task_queue=temporal_names.CONTROL_QUEUE, workflows=[ModelRunWorkflow]),
        Worker(client, task_queue=queue, activities=[execution.run_slice], max_concurrent_activities=2),
    ):
        runs = [
            await client.start_workflow(
                ModelRunWorkflow.run,
                ModelRun.of(order, share(model, slices), "p"),
                id=ids[model],
                task_queue=temporal_names.CONTROL_QUEUE,
            )
            for model, slices in (("m", 2), ("n", 1))
        ]
        await until(have_begun)
        waiting, running = await gateway.pending(ids["m"])
        (queued,) = await gateway.pending(ids["n"])
        for run in runs:
            await run.terminate()
    assert [each.slice_number for each in (waiting, running, queued)] == [0, 1, 0]
    assert {(each.name, each.queue) for each in (waiting, running)} == {("run_slice", queue)}
    assert (waiting.attempt, waiting.last_failure) == (2, "no backend serves it")
    assert waiting.next_attempt_at is not None
    assert waiting.next_attempt_at - waiting.state_since > timedelta(minutes=50)
    assert running.worker
    assert (running.last_failure, running.next_attempt_at) == ("", None)
    assert (queued.worker, queued.heartbeat_at) == ("", None)
    assert await gateway.pending(order.batch_id) == []
