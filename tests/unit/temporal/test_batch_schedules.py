"""Errors of Temporal for a schedule that it does not accept."""

from typing import cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.temporal_payloads.batch_schedules import OverlapPolicy, ScheduleSpec
from batchwright.settings import load
from batchwright.temporal import TemporalUnavailable
from batchwright.temporal.batch_schedules import TemporalBatchSchedules, TimeZoneUnknown

SPEC = ScheduleSpec(
    tenant="t", id="schedule_1", cron="0 2 * * *", time_zone="Europe/Atlantis", overlap=OverlapPolicy.SKIP
)


class RefusingClient:
    """A client of a server that refuses every schedule as an invalid argument."""

    def __init__(self, message: str) -> None:
        self._error = RPCError(message, RPCStatusCode.INVALID_ARGUMENT, b"")

    async def create_schedule(self, *_: object, **__: object) -> None:
        raise self._error


async def refused(message: str) -> None:
    client = cast("Client", RefusingClient(message))
    await TemporalBatchSchedules(client, load()).create(SPEC)


async def test_a_time_zone_that_temporal_does_not_know_is_the_clients_error() -> None:
    with pytest.raises(TimeZoneUnknown):
        await refused("Invalid schedule spec: unknown time zone Europe/Atlantis")


async def test_another_reason_to_refuse_a_schedule_is_not_taken_for_its_time_zone() -> None:
    message = "Namespace batches has no mapping defined for search attribute BatchwrightTenant"
    with pytest.raises(TemporalUnavailable, match="BatchwrightTenant"):
        await refused(message)
