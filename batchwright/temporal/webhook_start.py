"""Start the workflow of a webhook delivery."""

from datetime import timedelta

from temporalio.client import Client
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from batchwright.contracts import temporal_names
from batchwright.contracts.temporal_payloads.webhooks import WORKFLOW, DeliveryOrder

_RPC_TIMEOUT = timedelta(seconds=10)


async def start_delivery(client: Client, order: DeliveryOrder, replays: int) -> None:
    """Start the workflow of a webhook delivery. If the workflow was started before, nothing happens, even if
    it has ended.

    Args:
        replays: number of times that a client has requested to send the delivery again. Each time has a
            workflow of its own.

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
