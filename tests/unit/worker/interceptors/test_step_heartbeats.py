"""Heartbeats of steps: acknowledged heartbeats, and what they tell the next attempt."""

from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import pytest
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.execution import RELEASED
from batchwright.worker.interceptors.attempt_history import previous_failures
from batchwright.worker.interceptors.step_quarantine import send_heartbeat


class FakeTemporal:
    """Client of a Temporal server that answers each heartbeat with `error`, if there is one."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.details: tuple[object, ...] = ()

    def get_async_activity_handle(self, *, task_token: bytes) -> "FakeTemporal":
        return self

    async def heartbeat(self, *details: object, rpc_timeout: timedelta) -> None:
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
