"""Webhooks on a whole stack: every event arrives at least once, even if the worker is killed in between."""

import json

import pytest

from batchwright.contracts.api_objects.webhooks import DeliveryPage, WebhookObject
from tests.clients import http_client
from tests.e2e.batches import CHAT, chat_lines, ended, until
from tests.e2e.stack import MODELS, Stack
from tests.fakes.webhook_receiver import receiving

pytestmark = pytest.mark.e2e

WEBHOOKS = "/v1/x/webhooks"
EVENTS = {"batch.in_progress", "batch.completed"}


async def test_events_arrive_although_the_worker_is_killed_while_a_delivery_is_pending(stack: Stack) -> None:
    """The tenant's endpoint refuses the events until the worker is dead. The batch also has a webhook
    endpoint of its own.
    """
    async with (
        receiving() as receiver,
        receiving() as other,
        stack.client() as client,
        http_client(stack.now.api) as http,
    ):
        receiver.status = 503
        body = {"url": receiver.url, "events": sorted(EVENTS), "details": True}
        made = await http.post(WEBHOOKS, json=body)
        webhook = WebhookObject.model_validate_json(made.raise_for_status().content)
        assert webhook.secret is not None
        extension = {"x_batchwright": {"webhook": {"url": other.url}}}
        content = "".join(f"{json.dumps(line)}\n" for line in chat_lines(MODELS, 2)).encode()
        file = await client.files.create(file=("input.jsonl", content), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", extra_body=extension
        )
        assert batch.model_extra is not None
        own_secret: str = batch.model_extra["x_batchwright"]["webhook"]["secret"]
        assert (await ended(client, batch.id)).status == "completed"

        async def are_refused() -> bool:
            return {received.type for received in receiver.received} == EVENTS

        await until(are_refused)
        stack.kill("worker")
        receiver.status = 200

        async def are_delivered() -> bool:
            page = await http.get(f"{WEBHOOKS}/{webhook.id}/deliveries")
            found = DeliveryPage.model_validate_json(page.raise_for_status().content).data
            return [each.status for each in found] == 2 * ["delivered"]

        await until(are_delivered)
        events = [received.unwrap(webhook.secret) for received in receiver.received]
        own = [received.unwrap(own_secret) for received in await other.wait_for(1)]
    assert {event.type for event in events} == EVENTS
    assert {event.data.to_dict()["id"] for event in events} == {batch.id}
    assert {event.type for event in own} == {"batch.completed"}
    for type in sorted(EVENTS):
        attempts = [received for received in receiver.received if received.type == type]
        assert len(attempts) > 1
        assert len({(attempt.id, attempt.body) for attempt in attempts}) == 1
        assert len({attempt.headers["webhook-signature"] for attempt in attempts}) > 1
