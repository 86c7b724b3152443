"""Checks of webhooks with the official Python client: endpoints, deliveries, and the webhook of a batch."""

import httpx
import pytest
from openai import BadRequestError, NotFoundError
from openai.types import Batch

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.webhooks import DeliveryObject, DeliveryPage, WebhookObject
from batchwright.contracts.terms import Profile
from tests.conformance.contract import Api, Table
from tests.conformance.operation import exactly
from tests.conformance.requests import done, sent
from tests.e2e.batches import CHAT, ended, until
from tests.fakes.webhook_receiver import ReceivedWebhook, WebhookReceiver, receiving

TABLE = Table()
_EVENTS = ["batch.in_progress", "batch.completed"]


async def _about(receiver: WebhookReceiver, batch: Batch, count: int) -> list[ReceivedWebhook]:
    """Wait for `count` webhooks about the batch, and return them."""

    def found() -> list[ReceivedWebhook]:
        return [each for each in receiver.received if batch.id.encode() in each.body]

    async def have_arrived() -> bool:
        return len(found()) >= count

    await until(have_arrived)
    return found()


@TABLE.row(
    "Webhooks",
    "events of a batch arrive, and both secrets verify them during a rotation; deliveries are listed, "
    "replayed and tested",
)
async def endpoint(api: Api) -> None:
    async with receiving() as receiver:
        body = {"url": receiver.url, "events": _EVENTS}
        made = await api.client.post("/x/webhooks", cast_to=httpx.Response, body=body)
        old = exactly(WebhookObject, made)
        path = f"/x/webhooks/{old.id}"
        new = exactly(
            WebhookObject,
            await api.client.post(f"{path}/rotate", cast_to=httpx.Response, body={"overlap_seconds": 3600}),
        )
        batch = await done(api.client)
        received = await _about(receiver, batch, 2)
        for secret in (old.secret, new.secret):
            events = [each.unwrap(secret or "") for each in received]
            assert {event.type for event in events} == set(_EVENTS)
            assert {event.data.to_dict()["id"] for event in events} == {batch.id}

        async def delivered() -> list[DeliveryObject]:
            page = await api.client.get(f"{path}/deliveries?status=delivered", cast_to=httpx.Response)
            return [each for each in exactly(DeliveryPage, page).data if each.batch_id == batch.id]

        async def are_listed() -> bool:
            return {each.type.value for each in await delivered()} == set(_EVENTS)

        await until(are_listed)
        first = (await delivered())[0].id
        await api.client.post(f"{path}/deliveries/{first}/replay", cast_to=httpx.Response)
        again = (await _about(receiver, batch, 3))[-1]
        assert (again.id, again.unwrap(new.secret or "").type in _EVENTS) == (first, True)
        tested = await api.client.post(f"{path}/test", cast_to=httpx.Response)
        assert exactly(DeliveryObject, tested).webhook_id == old.id
        await api.client.delete(path, cast_to=httpx.Response)
        with pytest.raises(NotFoundError):
            await api.client.get(path, cast_to=httpx.Response)


@TABLE.row("Webhooks", "a batch has a webhook of its own, with details of the batch", Profile.RELAXED)
async def of_a_batch(api: Api) -> None:
    async with receiving() as receiver:
        file = await sent(api.client)
        extension = {"webhook": {"url": receiver.url, "details": True}}
        body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        made = exactly(
            BatchObject,
            await api.client.post(
                "/batches", cast_to=httpx.Response, body={**body, "x_batchwright": extension}
            ),
        )
        webhook = made.x_batchwright.webhook
        assert webhook is not None
        batch = await ended(api.client, made.id)
        [received] = await _about(receiver, batch, 1)
        event = received.unwrap(webhook.secret or "")
    details = event.data.to_dict()["x_batchwright"]
    assert batch.request_counts is not None
    assert isinstance(details, dict)
    assert (event.type, details["request_counts"]) == ("batch.completed", batch.request_counts.to_dict())


@TABLE.row("Webhooks", "a URL that is not public, or no http(s) URL, and unknown events are 400 with `param`")
async def refused(api: Api) -> None:
    bad: list[tuple[str, dict[str, object]]] = [
        ("url", {"url": "http://169.254.169.254/latest"}),
        ("url", {"url": "ftp://example.com/"}),
        ("url", {"url": "https://user:password@example.com/"}),
        ("events", {"url": "http://127.0.0.1:9/", "events": ["batch.done"]}),
    ]
    for param, body in bad:
        with pytest.raises(BadRequestError) as error:
            await api.client.post("/x/webhooks", cast_to=httpx.Response, body=body)
        assert (error.value.param or "").startswith(param)
