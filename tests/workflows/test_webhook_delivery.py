"""Deliveries of webhooks: attempts for 72 hours, and the events that end them."""

from datetime import datetime

import pytest
from temporalio.client import WorkflowFailureError

from batchwright.contracts.temporal_payloads.webhooks import AttemptResult, DeliveryOrder, DeliveryResult
from batchwright.workflows.options import webhook_options
from tests.workflows.fixture import WorkflowFixture

pytestmark = pytest.mark.integration

ORDER = DeliveryOrder(tenant="acme", delivery_id="wh_1", endpoint_id="webhook_1")


async def delivered(fixture: WorkflowFixture) -> DeliveryResult:
    async with fixture.workers():
        return await fixture.delivered(ORDER)


def hours(begins: list[datetime]) -> list[float]:
    return [(begin - begins[0]).total_seconds() / 3600 for begin in begins]


async def test_a_success_ends_the_delivery(fixture: WorkflowFixture) -> None:
    assert await delivered(fixture) == DeliveryResult(attempts=1, outcome="delivered")
    assert [request.order for request in fixture.webhooks.requests] == [ORDER]


def test_endpoints_share_the_workers_fairly_and_those_of_one_tenants_batches_are_one() -> None:
    shared = ORDER.model_copy(update={"fairness_key": "acme"})
    assert [fairness_key(order) for order in (ORDER, shared)] == ["webhook_1", "acme"]


def fairness_key(order: DeliveryOrder) -> str | None:
    priority = webhook_options(order, attempt=1).get("priority")
    return priority.fairness_key if priority else None


async def test_failed_attempts_are_repeated_until_one_succeeds(fixture: WorkflowFixture) -> None:
    fixture.webhooks.failures = 3
    assert await delivered(fixture) == DeliveryResult(attempts=4, outcome="delivered")
    assert [request.is_last for request in fixture.webhooks.requests] == 4 * [False]


async def test_after_72_hours_the_last_attempt_is_made(fixture: WorkflowFixture) -> None:
    fixture.webhooks.failures = 1_000
    fixture.webhooks.clock = fixture.environment.get_current_time
    result = await delivered(fixture)
    assert result == DeliveryResult(attempts=22, outcome="Status 500.")
    assert [request.is_last for request in fixture.webhooks.requests] == [*21 * [False], True]
    begins = hours(fixture.webhooks.begins)
    assert begins[5] == pytest.approx(155 / 3600, abs=0.01)
    assert begins[-1] == pytest.approx(72, abs=0.1)


async def test_a_test_event_is_attempted_for_five_minutes(fixture: WorkflowFixture) -> None:
    fixture.webhooks.failures = 1_000
    fixture.webhooks.clock = fixture.environment.get_current_time
    async with fixture.workers():
        result = await fixture.delivered(ORDER.model_copy(update={"is_test": True}))
    assert result == DeliveryResult(attempts=7, outcome="Status 500.")
    assert [request.is_last for request in fixture.webhooks.requests] == [*6 * [False], True]
    assert hours(fixture.webhooks.begins)[-1] == pytest.approx(5 / 60, abs=0.01)


async def test_an_endpoint_that_is_gone_ends_the_delivery(fixture: WorkflowFixture) -> None:
    fixture.webhooks.result = AttemptResult(is_final=True, outcome="the endpoint was deleted")
    assert await delivered(fixture) == DeliveryResult(attempts=1, outcome="the endpoint was deleted")


async def test_an_unexpected_error_counts_as_a_failed_attempt(fixture: WorkflowFixture) -> None:
    fixture.webhooks.broken = 2
    assert await delivered(fixture) == DeliveryResult(attempts=3, outcome="delivered")


async def test_a_cancelled_delivery_ends(fixture: WorkflowFixture) -> None:
    fixture.webhooks.failures = 1_000
    async with fixture.workers():
        handle = await fixture.start_delivery(ORDER)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
