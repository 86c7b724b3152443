"""Webhooks that belong to one batch, because the request that created the batch names their URL."""

import json

import httpx
import pytest

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.webhooks import (
    WebhookPage,
)
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.rules.webhooks.signatures import check_secret
from batchwright.temporal import TemporalUnavailable
from tests.fakes.api import ApiFixture, open_api, read
from tests.unit.api.routes.webhooks.webhook_requests import (
    NOW,
    OUTCOME,
    SECRET,
    URL,
    WEBHOOKS,
    created,
    deliveries,
    ended,
    refused,
)


async def create_once(api: ApiFixture) -> httpx.Response:
    """Create a batch with a webhook. Each call sends the same request with the same idempotency key."""
    body = {
        "input_file_id": "file-" + 32 * "0",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "x_batchwright": {"webhook": {"url": URL}},
    }
    return await api.http.post("/v1/batches", json=body, headers={"Idempotency-Key": "once"})


# --- webhooks of batches


async def test_a_batch_has_a_webhook_of_its_own(api: ApiFixture) -> None:
    webhook = {"url": URL, "events": ["batch.in_progress"], "details": True}
    batch = await api.create(x_batchwright={"webhook": webhook})
    made = batch.x_batchwright.webhook
    assert made is not None
    assert made.secret is not None
    check_secret(made.secret)
    assert (made.url, made.events, made.details) == (URL, ["batch.in_progress"], True)
    listed = read(await api.http.get(WEBHOOKS, params={"batch_id": batch.id}), WebhookPage)
    assert [(each.id, each.batch_id) for each in listed.data] == [(made.id, batch.id)]
    assert read(await api.http.get(WEBHOOKS), WebhookPage).data == []
    models = [ModelCounts(model="llama", lines=1)]
    await api.database.batches.start("default", batch.id, total=1, models=models, at=NOW)
    assert [each.type for each in await deliveries(api, made.id)] == ["batch.in_progress"]
    await ended(api)
    assert len(await deliveries(api, made.id)) == 1


async def test_the_secret_of_a_batchs_webhook_is_nowhere_else(api: ApiFixture) -> None:
    batch = await api.create(x_batchwright={"webhook": {"url": URL, "secret": SECRET}})
    assert batch.x_batchwright.webhook is not None
    assert batch.x_batchwright.webhook.secret == SECRET
    assert SECRET not in (await api.http.get(f"/v1/batches/{batch.id}")).text
    assert read(await api.http.get(f"/v1/batches/{batch.id}"), BatchObject).x_batchwright.webhook is None
    order = api.order(batch.id).model_dump_json()
    assert SECRET not in order
    assert URL not in order


async def test_a_repeated_creation_shows_the_same_secret(api: ApiFixture) -> None:
    """The first request was interrupted after the webhook was stored."""
    api.temporal.failing = TemporalUnavailable("no answer")
    assert (await create_once(api)).status_code == 503
    api.temporal.failing = None
    first, second = [read(await create_once(api), BatchObject) for _ in range(2)]
    assert first.x_batchwright.webhook is not None
    assert (first.id, first.x_batchwright.webhook) == (second.id, second.x_batchwright.webhook)


async def test_a_repeated_creation_does_not_bring_a_deleted_webhook_back(api: ApiFixture) -> None:
    first = read(await create_once(api), BatchObject)
    assert first.x_batchwright.webhook is not None
    await api.http.delete(f"{WEBHOOKS}/{first.x_batchwright.webhook.id}")
    second = read(await create_once(api), BatchObject)
    assert (second.id, second.x_batchwright.webhook) == (first.id, None)
    assert api.database.rows.webhook_endpoints == {}


async def test_a_repeated_creation_of_a_deleted_batch_creates_no_webhook(api: ApiFixture) -> None:
    batch = read(await create_once(api), BatchObject)
    assert batch.x_batchwright.webhook is not None
    await api.http.delete(f"{WEBHOOKS}/{batch.x_batchwright.webhook.id}")
    await api.database.batch_ends.finish("default", batch.id, OUTCOME, NOW)
    assert await api.database.batch_deletions.remove("default", batch.id, NOW)
    assert (await create_once(api)).status_code == 409
    assert api.database.rows.webhook_endpoints == {}


async def test_a_repeated_creation_shows_no_secret_that_cannot_be_read(api: ApiFixture) -> None:
    """The secret was encrypted with a key that the operator has removed."""
    first = read(await create_once(api), BatchObject).x_batchwright.webhook
    assert first is not None
    rows = api.database.rows.webhook_endpoints
    row = rows["default", first.id]
    rows["default", first.id] = row.model_copy(update={"secret": b"\x01old\x00encrypted"})
    second = read(await create_once(api), BatchObject).x_batchwright.webhook
    assert second == first.model_copy(update={"secret": None})


@pytest.mark.parametrize(
    ("webhook", "param"),
    [
        ("https://a.example", "webhook"),
        ({}, "webhook.url"),
        ({"url": "http://10.0.0.1/"}, "webhook.url"),
        ({"url": URL, "events": ["batch.sold"]}, "webhook.events[0]"),
        ({"url": URL, "secret": "geheim"}, "webhook.secret"),
        ({"url": URL, "details": 1}, "webhook.details"),
        ({"url": URL, "description": "mine"}, "webhook.description"),
    ],
)
async def test_a_webhook_of_a_batch_that_is_not_valid_is_400(
    api: ApiFixture, webhook: object, param: str
) -> None:
    file = await api.upload()
    body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    got, message = await refused(api, {**body, "x_batchwright": {"webhook": webhook}}, "/v1/batches")
    assert got == f"x_batchwright.{param}"
    assert "geheim" not in message
    assert api.temporal.orders == {}


async def test_without_payload_keys_the_database_has_the_secret_and_with_keys_it_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEBHOOK_TEST_KEY", "00" * 32)
    settings: dict[str, object] = {"webhook_allowed_networks": ["127.0.0.0/8"]}
    for keys, is_readable in ([], True), (["k=env:WEBHOOK_TEST_KEY"], False):
        async with open_api(**settings, payload_keys=keys) as api:
            webhook = await created(api)
            (row,) = api.database.rows.webhook_endpoints.values()
        assert webhook.secret is not None
        assert (webhook.secret.encode() in row.secret) is is_readable
        assert "secret=" not in repr(row)
        assert json.dumps(webhook.secret) not in repr(row)
