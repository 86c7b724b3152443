"""Runs workflows with stub activities on a Temporal test server, which skips waiting times."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from pathlib import Path

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker, WorkerDeploymentConfig

from batchwright.contracts.errors import Failure
from batchwright.contracts.search_attributes import SEARCH_ATTRIBUTES
from batchwright.contracts.temporal_names import (
    CONTROL_QUEUE,
    IO_QUEUE,
    OUTPUT_QUEUE,
    WEBHOOK_QUEUE,
    inference_queue,
    output_copy_id,
)
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchPolicy, BatchResult, BatchState
from batchwright.contracts.temporal_payloads.batch_schedules import ScheduledBatchResult, ScheduleRef
from batchwright.contracts.temporal_payloads.consistency import ConsistencyCheckOrder, ConsistencyCheckResult
from batchwright.contracts.temporal_payloads.execution import ModelRun, ModelRunResult
from batchwright.contracts.temporal_payloads.output_copies import OutputCopyState
from batchwright.contracts.temporal_payloads.retention import RetentionOrder, RetentionResult
from batchwright.contracts.temporal_payloads.webhooks import DeliveryOrder, DeliveryResult
from batchwright.contracts.terms import Endpoint, ValidationError
from batchwright.starter.embedded_stack.ports import free_port
from batchwright.temporal import DATA_CONVERTER
from batchwright.workflows.batch import BatchWorkflow
from batchwright.workflows.consistency_check import ConsistencyCheckWorkflow
from batchwright.workflows.model_run import ModelRunWorkflow
from batchwright.workflows.output_copy import OutputCopyWorkflow
from batchwright.workflows.retention import RetentionWorkflow
from batchwright.workflows.scheduled_batch import ScheduledBatchWorkflow
from batchwright.workflows.webhook_delivery import WebhookDeliveryWorkflow
from tests.integration.temporal.clusters import START_TIME
from tests.workflows.stub_activities import (
    StubConsistencyChecking,
    StubExecution,
    StubFinalization,
    StubIngestion,
    StubLifecycle,
    StubOutputCopies,
    StubRetention,
    StubScheduling,
    StubWebhooks,
    ingested,
    share,
)

DAY = timedelta(hours=24)
# The heartbeat timeout is longer than this process may be delayed: no slice is sent twice because of it.
POLICY = BatchPolicy(cancel_grace_seconds=0, expiry_grace_seconds=0, heartbeat_timeout_seconds=120)
SHORT = timedelta(seconds=1)  # time is skipped only while no activity is pending, so this is a real second
STORAGE_AWAY = ApplicationError("Storage is away.", type=Failure.STORAGE_UNAVAILABLE)


def system_error(message: str) -> list[ValidationError]:
    return [ValidationError(code="system_error", message=message)]


BatchHandle = WorkflowHandle[BatchWorkflow, BatchResult]
RunHandle = WorkflowHandle[ModelRunWorkflow, ModelRunResult]
RetentionHandle = WorkflowHandle[RetentionWorkflow, RetentionResult]
ScheduledHandle = WorkflowHandle[ScheduledBatchWorkflow, ScheduledBatchResult]
DeliveryHandle = WorkflowHandle[WebhookDeliveryWorkflow, DeliveryResult]


@contextlib.asynccontextmanager
async def time_skipping_server() -> AsyncGenerator[WorkflowEnvironment]:
    """Context manager that starts a Temporal server that skips waiting times, and yields it.

    Each test needs its own server, because hours that one test skips would also pass for other tests.
    """
    environment = await WorkflowEnvironment.start_time_skipping(
        port=free_port(),
        test_server_startup_timeout=START_TIME,
        test_server_existing_path=str(Path(sys.executable).with_name("temporal-test-server")),
        data_converter=DATA_CONVERTER,
    )
    async with environment:
        await _register_search_attributes(environment.client)
        yield environment


class WorkflowFixture:
    """A fixture that starts workers and workflows on a Temporal server.

    A test configures the stub activities and inspects their calls.
    """

    def __init__(
        self, environment: WorkflowEnvironment, deployment: WorkerDeploymentConfig | None = None
    ) -> None:
        self.environment = environment
        self._deployment = deployment
        self.client = environment.client
        self.ingestion = StubIngestion(ingested(share("m")))
        self.execution = StubExecution()
        self.finalization = StubFinalization()
        self.lifecycle = StubLifecycle()
        self.retention = StubRetention()
        self.scheduling = StubScheduling()
        self.consistency = StubConsistencyChecking()
        self.webhooks = StubWebhooks()
        self.copies = StubOutputCopies()
        self.first_run: str | None = None  # of retention
        self.cached_workflows = (
            1_000  # 0: another worker continues at once, not after the sticky queue's timeout
        )

    @contextlib.asynccontextmanager
    async def workers(self, models: Sequence[str] = ("m",)) -> AsyncGenerator[None]:
        async with asyncio.timeout(300), contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._control())
            await stack.enter_async_context(self._io())
            await stack.enter_async_context(self._webhooks())
            await stack.enter_async_context(self._output_copies())
            for model in models:
                await stack.enter_async_context(self.inference(model))
            yield

    async def settled(self, slices: int, model: str = "m") -> None:
        """Wait until the run of the model has counted at least `slices` finished slices.

        A test must call this before it cancels, because the server rejects the result of a slice that
        finishes while the workflow cancels it.
        """
        run = self.client.get_workflow_handle_for(ModelRunWorkflow.run, f"batch_1/{model}")
        while await _slices_done(run) < slices:
            pass

    def inference(self, model: str) -> Worker:
        return self.slices_at(inference_queue(model))

    def slices_at(self, queue: str) -> Worker:
        return Worker(
            self.client,
            task_queue=queue,
            activities=[self.execution.run_slice],
            deployment_config=self._deployment,
            max_heartbeat_throttle_interval=timedelta(seconds=0.1),
            default_heartbeat_throttle_interval=timedelta(seconds=0.1),
        )

    def _control(self) -> Worker:
        return Worker(
            self.client,
            task_queue=CONTROL_QUEUE,
            workflows=[
                BatchWorkflow,
                ModelRunWorkflow,
                RetentionWorkflow,
                ConsistencyCheckWorkflow,
                WebhookDeliveryWorkflow,
                ScheduledBatchWorkflow,
                OutputCopyWorkflow,
            ],
            activities=[
                self.lifecycle.insert_row,
                self.lifecycle.end,
                self.scheduling.admit_scheduled_batch,
                self.scheduling.record_scheduled_run,
                self.scheduling.record_scheduled_cancel,
                self.scheduling.end_of_scheduled_batch,
                self.copies.give_up_output_copy,
            ],
            deployment_config=self._deployment,
            max_cached_workflows=self.cached_workflows,
            # A bug in a workflow fails the test, instead of being retried until the timeout.
            workflow_failure_exception_types=[Exception],
        )

    def _io(self) -> Worker:
        return Worker(
            self.client,
            task_queue=IO_QUEUE,
            activities=[
                self.ingestion.ingest,
                self.finalization.finalize,
                self.retention.sweep,
                self.consistency.check_consistency,
            ],
            deployment_config=self._deployment,
            max_heartbeat_throttle_interval=timedelta(seconds=0.1),
            default_heartbeat_throttle_interval=timedelta(seconds=0.1),
        )

    def _webhooks(self) -> Worker:
        return Worker(
            self.client,
            task_queue=WEBHOOK_QUEUE,
            activities=[self.webhooks.deliver_webhook],
            deployment_config=self._deployment,
        )

    def _output_copies(self) -> Worker:
        return Worker(
            self.client,
            task_queue=OUTPUT_QUEUE,
            activities=[self.copies.copy_output],
            deployment_config=self._deployment,
        )

    async def order(self, window: timedelta = DAY, policy: BatchPolicy = POLICY) -> BatchOrder:
        now = await self.environment.get_current_time()
        return BatchOrder(
            batch_id="batch_1",
            tenant="acme",
            input_file_id="file-1",
            endpoint=Endpoint.CHAT_COMPLETIONS,
            completion_window="24h",
            created_at=now,
            deadline=now + window,
            policy=policy,
        )

    async def later(self, delay: timedelta = 3 * DAY, window: timedelta = timedelta(hours=6)) -> BatchOrder:
        """Return the workflow argument of a batch that starts after `delay`. `window` is its completion
        window.
        """
        order = await self.order()
        start = order.created_at + delay
        return order.model_copy(update={"start_at": start, "deadline": start + window})

    async def start(self, order: BatchOrder | None = None) -> BatchHandle:
        order = order or await self.order()
        return await self.client.start_workflow(
            BatchWorkflow.run, order, id=order.batch_id, task_queue=CONTROL_QUEUE
        )

    async def model_run(self, slices: int, window: timedelta = DAY, policy: BatchPolicy = POLICY) -> ModelRun:
        order = await self.order(window, policy)
        return ModelRun.of(order, share("m", slices), "ingest/1")

    async def start_run(self, run: ModelRun) -> RunHandle:
        return await self.client.start_workflow(
            ModelRunWorkflow.run, run, id="batch_1/m", task_queue=CONTROL_QUEUE
        )

    async def start_retention(self, order: RetentionOrder) -> RetentionHandle:
        handle = await self.client.start_workflow(
            RetentionWorkflow.run, order, id="retention", task_queue=CONTROL_QUEUE
        )
        self.first_run = handle.first_execution_run_id
        return handle

    async def start_scheduled(self) -> ScheduledHandle:
        """Start the workflow that creates a batch of a schedule, as the schedule does."""
        schedule = ScheduleRef(tenant="acme", schedule_id="schedule_1")
        return await self.client.start_workflow(
            ScheduledBatchWorkflow.run, schedule, id="schedule_1-2026", task_queue=CONTROL_QUEUE
        )

    async def start_delivery(self, order: DeliveryOrder) -> DeliveryHandle:
        return await self.client.start_workflow(
            WebhookDeliveryWorkflow.run, order, id=order.delivery_id, task_queue=CONTROL_QUEUE
        )

    async def copied(self) -> OutputCopyState:
        """Wait for the end of the workflow that copies the files of the batch, and return the state."""
        return await self.client.get_workflow_handle_for(
            OutputCopyWorkflow.run, output_copy_id("batch_1")
        ).result()

    async def delivered(self, order: DeliveryOrder) -> DeliveryResult:
        return await (await self.start_delivery(order)).result()

    async def checked(self) -> ConsistencyCheckResult:
        return await self.client.execute_workflow(
            ConsistencyCheckWorkflow.run,
            ConsistencyCheckOrder(),
            id="consistency-check",
            task_queue=CONTROL_QUEUE,
        )


async def _slices_done(run: RunHandle) -> int:
    try:
        return (await run.query(ModelRunWorkflow.progress)).slices_done
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return 0


async def state_of(batch: BatchHandle) -> BatchState:
    return await batch.query(BatchWorkflow.state)


async def _register_search_attributes(client: Client) -> None:
    kinds = {key.name: IndexedValueType.ValueType(int(key.indexed_value_type)) for key in SEARCH_ATTRIBUTES}
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace=client.namespace, search_attributes=kinds)
    )
