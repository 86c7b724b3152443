"""Heartbeats of activities: when they are acknowledged, and what they tell the next attempt."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from batchwright.activities.execution.slice_state.lease import HeartbeatReply, temporal_heartbeat
from batchwright.activities.heartbeat import failure_count_details, previous_failures
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.execution import RELEASED, SliceResult
from batchwright.worker.interceptors.step_quarantine import send_heartbeat


class FakeTemporal:
    """A client of a Temporal server that answers each heartbeat with `error`, if there is one."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.details: tuple[object, ...] = ()

    def get_async_activity_handle(self, *, task_token: bytes) -> "FakeTemporal":
        return self

    async def heartbeat(self, *details: object, rpc_timeout: timedelta | None = None) -> None:
        if self.error is not None:
            raise self.error
        self.details = details

    async def beat(self, details: Sequence[object]) -> None:
        await ActivityEnvironment(client=cast("Client", self)).run(send_heartbeat, details)


async def test_an_acknowledged_heartbeat_has_its_details_and_leaves_a_cancel_to_the_sdk() -> None:
    for error, expected in ((None, ("a", "b")), (AsyncActivityCancelledError(), ())):
        temporal = FakeTemporal(error)
        await temporal.beat(["a", "b"])
        assert temporal.details == expected


async def test_an_attempt_that_temporal_does_not_know_any_more_has_lost_its_step() -> None:
    with pytest.raises(ApplicationError) as lost:
        await FakeTemporal(RPCError("not found", RPCStatusCode.NOT_FOUND, b"")).beat([])
    assert lost.value.type == Failure.OWNERSHIP_LOST
    with pytest.raises(RPCError, match="away"):
        await FakeTemporal(RPCError("away", RPCStatusCode.UNAVAILABLE, b"")).beat([])


def test_the_greatest_number_of_unknown_exceptions_is_the_latest() -> None:
    assert previous_failures(["unexpected failures: 3", "unexpected failures: 4", RELEASED]) == 4


async def test_a_slice_whose_worker_crashes_after_unknown_exceptions_does_not_forget_their_number() -> None:
    temporal, sent_by_sdk = FakeTemporal(None), list[Sequence[object]]()
    client = cast("Client", temporal)
    environment = ActivityEnvironment(client=client)
    found = ({"completed": 1}, *failure_count_details(2), RELEASED)
    environment.info = replace(environment.info, attempt=4, heartbeat_details=found)
    environment.on_heartbeat = lambda *details: sent_by_sdk.append(details)

    async def beat() -> HeartbeatReply:
        return await temporal_heartbeat(client)(SliceResult(completed=2))

    assert await environment.run(beat) is HeartbeatReply.OK
    for details in (temporal.details, *sent_by_sdk):
        assert (previous_failures(details), RELEASED in details) == (2, False)
    assert len(sent_by_sdk) == 1
