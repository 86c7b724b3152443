"""One attempt to deliver a webhook, to a real HTTP receiver."""

import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest
from openai import InvalidWebhookSignatureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from batchwright.activities.webhooks.activity import WebhookDeliveries
from batchwright.contracts.api_objects.webhook_events import CALL_EVENTS, END_EVENTS
from batchwright.contracts.errors import Failure
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import ErrorCount
from batchwright.contracts.temporal_payloads.webhooks import AttemptRequest, AttemptResult, DeliveryOrder
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.webhooks.webhook_deliveries import ListedDelivery
from batchwright.database.tables.webhooks.webhook_endpoints import WebhookEndpoint
from batchwright.rules.calls.call_results import answers_of
from batchwright.rules.results.output_lines import result_line
from batchwright.rules.webhooks.signatures import new_secret
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal.codec import PayloadKey
from batchwright.temporal.stored_secrets import StoredSecrets
from batchwright.webhooks.sender import WebhookSender
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.webhook_receiver import LOOPBACK, WebhookReceiver, receiving
from tests.integration.database.call_rows import GROUP, a_call, a_rolling_order
from tests.integration.database.rows import a_running_batch, after, an_outcome

SECRET, OTHER = new_secret(b"s" * 32), new_secret(b"o" * 32)
KEYS = [PayloadKey.of("key", b"k" * 32)]


class DeliveryFixture:
    """A fixture that delivers the event "batch completed" to an endpoint of a real HTTP receiver."""

    def __init__(self, receiver: WebhookReceiver, sender: WebhookSender) -> None:
        self.receiver, self.sender = receiver, sender
        self.database, self.metrics, self.secrets = MemoryDatabase(), Metrics(), StoredSecrets(KEYS)

    async def happens(self, **endpoint: object) -> DeliveryOrder:
        """Create the endpoint and complete a batch. Return the argument of the activity that delivers the
        event.
        """
        await self.create_endpoint(**endpoint)
        await a_running_batch(self.database)
        failed = [ErrorCount(code="http_400", model="a", count=2)]
        await self.database.batch_ends.finish("t", "batch_1", an_outcome(errors_summary=failed), after(30))
        return await self.recorded()

    async def create_endpoint(self, **endpoint: object) -> None:
        row = WebhookEndpoint(
            tenant="t",
            id="webhook_1",
            url=self.receiver.url,
            events=list(END_EVENTS),
            secret=self.secrets.encrypt(SECRET, "webhook_1"),
            created_at=after(0),
        )
        await self.database.webhook_endpoints.insert(row.model_copy(update=endpoint), limit=0)

    async def recorded(self) -> DeliveryOrder:
        """Return the argument of the activity that delivers the only recorded event."""
        (delivery,) = await self.database.webhook_deliveries.unstarted(2)
        return DeliveryOrder(tenant="t", delivery_id=delivery.id, endpoint_id="webhook_1")

    async def attempt(self, order: DeliveryOrder, *, is_last: bool = False) -> AttemptResult:
        deliveries = WebhookDeliveries(self.database, self.sender, self.secrets, self.metrics)
        return await ActivityEnvironment().run(
            deliveries.deliver_webhook, AttemptRequest(order=order, is_last=is_last)
        )

    async def listed(self, order: DeliveryOrder) -> ListedDelivery:
        found = await self.database.webhook_deliveries.one("t", "webhook_1", order.delivery_id)
        assert found is not None
        return found

    async def change(self, **changes: object) -> None:
        row = await self.database.webhook_endpoints.get("t", "webhook_1")
        assert row is not None
        self.database.rows.webhook_endpoints["t", "webhook_1"] = row.model_copy(update=changes)


@pytest.fixture
async def fixture() -> AsyncGenerator[DeliveryFixture]:
    async with receiving() as receiver:
        sender = WebhookSender(LOOPBACK)
        yield DeliveryFixture(receiver, sender)
        await sender.close()


def counted(metrics: Metrics, line: str) -> bool:
    return f"batchwright_{line}\n".encode() in metrics.render()


@pytest.mark.parametrize(("size", "omitted"), [(10, False), (2 * 1024 * 1024, True)])
async def test_the_callback_of_a_job_has_its_result_unless_it_is_large(
    fixture: DeliveryFixture, size: int, omitted: bool
) -> None:
    job, result = "job_" + 32 * "0", {"text": "a" * size}
    await fixture.create_endpoint(batch_id=job, events=list(CALL_EVENTS))
    await fixture.database.calls.open(GROUP, a_rolling_order(), max_batches=9)
    assert await fixture.database.calls.insert(a_call(job, notifies=True)) is not None
    body = json.dumps(result).encode()
    line = result_line("batch_req_" + 32 * "0", job, status_code=200, backend_request_id="", body=body)
    await fixture.database.calls.answer("t", answers_of([line]))
    await fixture.attempt(await fixture.recorded())
    [received] = fixture.receiver.received
    sent = json.loads(received.body)
    assert (sent["job_id"], sent["status"], sent["result_omitted"]) == (job, "completed", omitted)
    assert sent["result"] == (None if omitted else result)


async def test_the_official_client_accepts_the_event(fixture: DeliveryFixture) -> None:
    order = await fixture.happens()
    assert await fixture.attempt(order) == AttemptResult(is_final=True, outcome="delivered")
    received = fixture.receiver.received[0]
    event = received.unwrap(SECRET)
    assert (event.type, event.data.to_dict()) == ("batch.completed", {"id": "batch_1"})
    assert received.id == order.delivery_id
    delivery, attempts = await fixture.listed(order)
    assert (delivery.status, [(each.http_status, each.reason) for each in attempts]) == (
        "delivered",
        [(200, "")],
    )
    assert counted(fixture.metrics, 'webhook_deliveries_total{result="delivered"} 1.0')


async def test_a_failed_attempt_is_a_result_with_its_reason(fixture: DeliveryFixture) -> None:
    fixture.receiver.status = 503
    order = await fixture.happens()
    assert await fixture.attempt(order) == AttemptResult(is_final=False, outcome="Status 503.")
    delivery, attempts = await fixture.listed(order)
    assert (delivery.status, attempts[0].http_status, attempts[0].reason) == ("pending", 503, "Status 503.")
    assert attempts[0].seconds > 0
    assert counted(fixture.metrics, 'webhook_attempts_total{result="failed"} 1.0')


async def test_each_attempt_is_signed_anew_with_the_same_id_and_body(
    fixture: DeliveryFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt to deliver the event is ten minutes later. The batch has changed meanwhile."""
    fixture.receiver.status = 500
    order = await fixture.happens(details=True)
    await fixture.attempt(order)
    row = fixture.database.rows.batches["t", "batch_1"]
    fixture.database.rows.batches["t", "batch_1"] = row.model_copy(update={"completed": 99})
    fixture.receiver.status = 200
    now = datetime.now(UTC) + timedelta(minutes=10)

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return now

    monkeypatch.setattr("batchwright.activities.webhooks.activity.datetime", Later)
    await fixture.attempt(order)
    first, second = fixture.receiver.received
    assert (first.id, first.body) == (second.id, second.body)
    assert int(second.headers["webhook-timestamp"]) - int(first.headers["webhook-timestamp"]) in range(
        600, 660
    )
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]
    first.unwrap(SECRET)
    with pytest.raises(InvalidWebhookSignatureError, match="too new"):
        second.unwrap(SECRET)


async def test_details_are_sent_only_where_they_are_switched_on(fixture: DeliveryFixture) -> None:
    order = await fixture.happens(details=True)
    rows, prices = fixture.database.rows.batches, {"a": PriceConfig(request="0.25")}
    rows["t", "batch_1"] = rows["t", "batch_1"].model_copy(update={"prices": prices})
    await fixture.attempt(order)
    more = json.loads(fixture.receiver.received[0].body)["data"]["x_batchwright"]
    assert (more["status"], more["completion_window"], more["output_file_id"]) == (
        "completed",
        "24h",
        "file-out",
    )
    assert more["request_counts"] == {"total": 10, "completed": 8, "failed": 2}
    assert more["errors_summary"][0].items() >= {"code": "http_400", "count": 2}.items()
    assert more["cost"].items() >= {"amount": "2", "currency": "USD", "final": True}.items()
    fixture.receiver.received[0].unwrap(SECRET)


async def test_an_event_of_a_deleted_batch_has_no_details_and_is_no_test(fixture: DeliveryFixture) -> None:
    order = await fixture.happens(details=True)
    del fixture.database.rows.batches["t", "batch_1"]
    await fixture.attempt(order)
    assert json.loads(fixture.receiver.received[0].body)["data"] == {"id": "batch_1"}


async def test_while_a_secret_is_replaced_both_are_accepted(fixture: DeliveryFixture) -> None:
    order = await fixture.happens()
    new = fixture.secrets.encrypt(OTHER, "webhook_1")
    await fixture.database.webhook_endpoints.rotate(
        "t", "webhook_1", new, datetime.now(UTC) + timedelta(hours=1)
    )
    await fixture.attempt(order)
    for secret in (SECRET, OTHER):
        fixture.receiver.received[0].unwrap(secret)


async def test_after_the_overlap_only_the_new_secret_is_accepted(fixture: DeliveryFixture) -> None:
    order = await fixture.happens()
    new = fixture.secrets.encrypt(OTHER, "webhook_1")
    await fixture.database.webhook_endpoints.rotate("t", "webhook_1", new, datetime.now(UTC))
    await fixture.attempt(order)
    fixture.receiver.received[0].unwrap(OTHER)
    with pytest.raises(InvalidWebhookSignatureError):
        fixture.receiver.received[0].unwrap(SECRET)


async def test_the_last_attempt_ends_the_delivery(fixture: DeliveryFixture) -> None:
    fixture.receiver.status = 500
    order = await fixture.happens()
    assert await fixture.attempt(order, is_last=True) == AttemptResult(is_final=True, outcome="Status 500.")
    assert (await fixture.listed(order)).delivery.status == "failed"
    assert counted(fixture.metrics, 'webhook_deliveries_total{result="failed"} 1.0')


async def test_an_endpoint_that_failed_for_72_hours_is_disabled_and_gets_no_other_event(
    fixture: DeliveryFixture,
) -> None:
    fixture.receiver.status = 500
    order = await fixture.happens(failing_since=datetime.now(UTC) - timedelta(hours=72))
    await fixture.attempt(order)
    row = await fixture.database.webhook_endpoints.get("t", "webhook_1")
    assert row is not None
    assert row.disabled_reason == "Every delivery has failed for 72 hours."
    assert counted(fixture.metrics, "webhook_endpoints_disabled_total 1.0")
    assert await fixture.attempt(order) == AttemptResult(is_final=True, outcome="the endpoint is disabled")
    assert len(fixture.receiver.received) == 1
    delivery, _ = await fixture.listed(order)
    assert (delivery.status, delivery.reason) == ("failed", "The endpoint is disabled.")


async def test_a_deleted_endpoint_ends_the_delivery(fixture: DeliveryFixture) -> None:
    order = await fixture.happens()
    await fixture.database.webhook_endpoints.delete("t", "webhook_1")
    assert await fixture.attempt(order) == AttemptResult(is_final=True, outcome="the endpoint was deleted")
    assert fixture.receiver.received == []


async def test_an_attempt_that_was_recorded_before_a_crash_is_not_repeated(fixture: DeliveryFixture) -> None:
    order = await fixture.happens()
    await fixture.attempt(order)
    assert await fixture.attempt(order) == AttemptResult(is_final=True, outcome="delivered")
    assert len(fixture.receiver.received) == 1


async def test_a_secret_that_cannot_be_read_fails_the_attempt_and_nothing_is_sent(
    fixture: DeliveryFixture, caplog: pytest.LogCaptureFixture
) -> None:
    order = await fixture.happens()
    fixture.secrets = StoredSecrets([])
    result = await fixture.attempt(order)
    assert (result.is_final, fixture.receiver.received) == (False, [])
    assert "rotate it" in result.outcome
    assert SECRET not in caplog.text


async def test_an_unavailable_database_is_retried(fixture: DeliveryFixture) -> None:
    order = await fixture.happens()
    fixture.database.rows.failing = DatabaseUnavailable("no answer")
    with pytest.raises(ApplicationError) as failed:
        await fixture.attempt(order)
    assert (failed.value.type, failed.value.non_retryable) == (Failure.DATABASE_UNAVAILABLE, False)


async def test_an_address_that_changed_after_registration_fails_with_the_reason(
    fixture: DeliveryFixture,
) -> None:
    order = await fixture.happens(url=fixture.receiver.url.replace("127.0.0.1", "localhost"))
    fixture.sender = WebhookSender([])
    result = await fixture.attempt(order)
    await fixture.sender.close()
    assert result.outcome == (
        "The host of the URL was not found, or has an address that is not a public one."
    )
    assert fixture.receiver.received == []


async def test_events_about_batches_of_every_end_are_delivered(fixture: DeliveryFixture) -> None:
    await fixture.happens()
    for status in (BatchStatus.EXPIRED, BatchStatus.CANCELLED, BatchStatus.FAILED):
        await a_running_batch(fixture.database, f"batch_{status}")
        await fixture.database.batch_ends.finish("t", f"batch_{status}", an_outcome(status), after(30))
    for delivery in await fixture.database.webhook_deliveries.unstarted(10):
        order = DeliveryOrder(tenant="t", delivery_id=delivery.id, endpoint_id="webhook_1")
        await fixture.attempt(order)
    types = sorted(received.unwrap(SECRET).type for received in fixture.receiver.received)
    assert types == sorted(END_EVENTS)
