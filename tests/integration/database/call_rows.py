"""Rows of single calls and rolling batches, which tests of their tables and of callbacks share."""

from batchwright.contracts.calls import NewCall, RollingBatch
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchPolicy
from batchwright.contracts.terms import Endpoint
from tests.integration.database.rows import an_order

GROUP = "group_1"


def a_call(id: str = "resp_1", tenant: str = "t", group: str = GROUP, *, notifies: bool = False) -> NewCall:
    return NewCall(
        tenant=tenant,
        id=id,
        group=group,
        endpoint=Endpoint.RESPONSES,
        model="m",
        request=b'{"input":"\\u0000"}',
        notifies=notifies,
    )


def a_rolling_order(id: str = "batch_1", tenant: str = "t", group: str = GROUP) -> BatchOrder:
    policy = BatchPolicy(rolling=RollingBatch(group=group, open_seconds=0.5))
    return an_order(id, tenant).model_copy(update={"policy": policy})
