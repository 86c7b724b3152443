"""Start the workflows of batches and of webhook deliveries. A repeated start has no effect."""

from datetime import UTC, timedelta

from temporalio.client import Client
from temporalio.common import (
    Priority,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError

from batchwright.contracts import search_attributes, temporal_names
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.webhooks import WORKFLOW, DeliveryOrder
from batchwright.contracts.terms import BatchStatus

_RPC_TIMEOUT = timedelta(seconds=10)


async def start_batch(client: Client, order: BatchOrder) -> bool:
    """Start the workflow of the batch that `order` describes. If it was started before, do nothing.

    Return True if this call has started it. Raises RPCError if a call to Temporal fails.
    """
    try:
        await client.start_workflow(
            "BatchWorkflow",
            order,
            id=order.batch_id,
            task_queue=temporal_names.CONTROL_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            execution_timeout=order.longest_run,
            static_summary=order.summary,
            search_attributes=_search_attributes(order),
            # Model runs inherit it: many model runs of one tenant do not delay batches of another tenant.
            priority=Priority(fairness_key=order.tenant, fairness_weight=order.fairness_weight),
            rpc_timeout=_RPC_TIMEOUT,
        )
    except WorkflowAlreadyStartedError:
        return False
    return True


async def start_delivery(client: Client, order: DeliveryOrder, replays: int) -> None:
    """Start the workflow of a webhook delivery. If it was started before, do nothing.

    Args:
        replays: number of times that a client has requested to send the delivery again. A new number starts
            a new workflow.

    Raises:
        RPCError: Temporal did not answer. The call can be repeated.
    """
    try:
        await client.start_workflow(
            WORKFLOW,
            order,
            id=temporal_names.webhook_delivery_id(order.delivery_id, replays),
            task_queue=temporal_names.CONTROL_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            priority=Priority(fairness_key=order.tenant),
            rpc_timeout=_RPC_TIMEOUT,
        )
    except WorkflowAlreadyStartedError:
        return


def _search_attributes(order: BatchOrder) -> TypedSearchAttributes:
    return TypedSearchAttributes(
        [
            SearchAttributePair(search_attributes.STATUS, BatchStatus.VALIDATING.value),
            SearchAttributePair(search_attributes.TENANT, order.tenant),
            SearchAttributePair(search_attributes.DEADLINE, order.deadline.astimezone(UTC)),
        ]
    )
