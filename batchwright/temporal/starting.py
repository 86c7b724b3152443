"""A batch's run as it is started, by whoever does."""

from datetime import UTC, timedelta

from temporalio.client import Client
from temporalio.common import (
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError

from batchwright.contracts import names, search
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.openai import BatchStatus

_RPC_TIMEOUT = timedelta(seconds=10)
# The workflow ends by its own timers; this only ends a run that no worker ever finishes.
_SAFETY_MARGIN = timedelta(days=7)


async def start_batch(client: Client, order: BatchOrder) -> bool:
    """Whether there is a run now that has not ended: a second start changes nothing. Raises RPCError."""
    try:
        await client.start_workflow(
            "BatchWorkflow",
            order,
            id=order.batch_id,
            task_queue=names.CONTROL_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            execution_timeout=_longest(order),
            static_summary=f"{order.endpoint} within {order.completion_window}, for tenant {order.tenant}",
            search_attributes=_search_attributes(order),
            rpc_timeout=_RPC_TIMEOUT,
        )
    except WorkflowAlreadyStartedError:
        return False  # whoever asked twice meant the same batch
    return True


def _longest(order: BatchOrder) -> timedelta:
    finalizing = timedelta(seconds=order.policy.finalize_patience_seconds)
    return order.expires_at - order.created_at + finalizing + _SAFETY_MARGIN


def _search_attributes(order: BatchOrder) -> TypedSearchAttributes:
    return TypedSearchAttributes(
        [
            SearchAttributePair(search.STATUS, BatchStatus.VALIDATING.value),
            SearchAttributePair(search.TENANT, order.tenant),
            SearchAttributePair(search.DEADLINE, order.expires_at.astimezone(UTC)),
        ]
    )
