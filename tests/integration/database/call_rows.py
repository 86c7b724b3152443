"""Rows of single calls and rolling batches, which tests of their tables and of callbacks share."""

from datetime import timedelta

from batchwright.contracts.calls import CallAnswer, CallStatus, NewCall, RollingBatch
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchPolicy
from batchwright.contracts.terms import Endpoint
from batchwright.database.database import Database
from tests.integration.database.rows import an_order

GROUP = "group_1"
LATER = timedelta(days=2)


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


async def opened(database: Database, *ids: str, notifies: bool = False) -> None:
    """Open a rolling batch (a batch that collects single requests), insert its row, and store calls for it.

    If `notifies` is True, each call has a callback.
    """
    await database.calls.open(GROUP, a_rolling_order(), max_batches=9)
    await database.batches.upsert(a_rolling_order())
    for id in ids:
        assert await database.calls.insert(a_call(id, notifies=notifies)) is not None


async def status_of(database: Database, id: str = "resp_1") -> CallStatus | None:
    call = await database.calls.get("t", id)
    return call and call.status


def an_answer(
    id: str = "resp_1", text: bytes = b"{}", status: CallStatus = CallStatus.COMPLETED
) -> CallAnswer:
    return CallAnswer(id=id, status=status, line=text)
