"""/v1/x/webhooks: webhooks of a tenant, and the deliveries of their events."""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.api_objects.webhook_events import END_EVENTS, TEST_BATCH, EventType
from batchwright.contracts.api_objects.webhooks import (
    DeliveryObject,
    WebhookObject,
    WebhookPage,
)
from batchwright.database.tables.webhooks.webhook_deliveries import WebhookAttempt
from batchwright.database.tables.webhooks.webhook_endpoints import EndpointChanges, WebhookEndpoint
from batchwright.rules.ids import new_delivery_id, new_webhook_id
from batchwright.rules.webhooks.signatures import check_secret
from tests.fakes.api import ApiFixture, error_of, read
from tests.unit.api.routes.webhooks.webhook_requests import (
    NOW,
    SECRET,
    URL,
    WEBHOOKS,
    created,
    deliveries,
    ended,
    refused,
)


async def test_a_new_webhook_has_a_secret_that_is_not_shown_again(api: ApiFixture) -> None:
    webhook = await created(api, description="mine")
    assert webhook.secret is not None
    check_secret(webhook.secret)
    assert webhook.model_copy(update={"secret": None}) == WebhookObject(
        id=webhook.id,
        url=URL,
        events=list(END_EVENTS),
        description="mine",
        details=False,
        batch_id=None,
        enabled=True,
        disabled_at=None,
        disabled_reason=None,
        failing_since=None,
        created_at=webhook.created_at,
        previous_secret_expires_at=None,
    )
    got = await api.http.get(f"{WEBHOOKS}/{webhook.id}")
    listed = await api.http.get(WEBHOOKS)
    changed = await api.http.patch(f"{WEBHOOKS}/{webhook.id}", json={"details": True})
    for answer in (got, listed, changed):
        assert answer.status_code == 200
        assert webhook.secret not in answer.text


async def test_fields_that_are_not_sent_stay_unchanged(api: ApiFixture) -> None:
    webhook = await created(api, description="mine", details=True)
    body = {"events": ["batch.paused", "batch.paused"], "url": URL + "2"}
    changed = read(await api.http.patch(f"{WEBHOOKS}/{webhook.id}", json=body), WebhookObject)
    assert (changed.events, changed.url) == ([EventType.BATCH_PAUSED], URL + "2")
    assert (changed.description, changed.details, changed.enabled) == ("mine", True, True)


async def test_a_change_keeps_a_disabling_that_happens_meanwhile(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = await created(api)
    table, get = api.database.webhook_endpoints, api.database.webhook_endpoints.get

    async def disable_after_reading(tenant: str, id: str) -> WebhookEndpoint | None:
        monkeypatch.undo()
        row = await get(tenant, id)
        await table.change(tenant, id, EndpointChanges(enabled=False), at=NOW, reason="It failed.")
        return row

    monkeypatch.setattr(table, "get", disable_after_reading)
    path = f"{WEBHOOKS}/{webhook.id}"
    changed = read(await api.http.patch(path, json={"description": "mine"}), WebhookObject)
    assert (changed.description, changed.enabled, changed.disabled_reason) == ("mine", False, "It failed.")


async def test_a_webhook_is_disabled_and_enabled(api: ApiFixture) -> None:
    webhook = await created(api)
    path = f"{WEBHOOKS}/{webhook.id}"
    for _ in range(2):
        off = read(await api.http.patch(path, json={"enabled": False}), WebhookObject)
        assert (off.enabled, off.disabled_reason) == (False, "A user disabled it.")
    await ended(api)
    assert await deliveries(api, webhook.id) == []
    test = await api.http.post(f"{path}/test")
    assert (test.status_code, "disabled" in error_of(test).message) == (409, True)
    on = read(await api.http.patch(path, json={"enabled": True}), WebhookObject)
    assert (on.enabled, on.disabled_at, on.disabled_reason) == (True, None, None)


async def test_a_deleted_webhook_is_unknown(api: ApiFixture) -> None:
    webhook = await created(api)
    path = f"{WEBHOOKS}/{webhook.id}"
    answer = await api.http.delete(path)
    assert answer.json() == {"id": webhook.id, "object": "webhook", "deleted": True}
    for method in ("GET", "DELETE"):
        assert (await api.http.request(method, path)).status_code == 404


async def test_webhooks_are_listed_in_pages(api: ApiFixture) -> None:
    made = {(await created(api)).id for _ in range(3)}
    first = read(await api.http.get(WEBHOOKS, params={"limit": "2"}), WebhookPage)
    last = read(await api.http.get(WEBHOOKS, params={"limit": "2", "after": first.last_id}), WebhookPage)
    assert (len(first.data), first.has_more, len(last.data), last.has_more) == (2, True, 1, False)
    assert {webhook.id for webhook in first.data + last.data} == made


async def test_a_rotated_secret_overlaps_with_the_old_one(api: ApiFixture) -> None:
    webhook = await created(api)
    path = f"{WEBHOOKS}/{webhook.id}/rotate"
    rotated = read(await api.http.post(path, json={"overlap_seconds": 60}), WebhookObject)
    assert rotated.secret not in (None, webhook.secret)
    assert rotated.previous_secret_expires_at is not None
    now = datetime.now(UTC).timestamp()
    assert rotated.previous_secret_expires_at == pytest.approx(now + 60, abs=30)
    at_once = read(await api.http.post(path, json={"overlap_seconds": 0}), WebhookObject)
    assert at_once.previous_secret_expires_at is None


async def test_a_test_event_is_a_delivery(api: ApiFixture) -> None:
    webhook = await created(api, events=["batch.failed", "batch.completed"])
    path = f"{WEBHOOKS}/{webhook.id}/test"
    first = read(await api.http.post(path), DeliveryObject)
    second = read(await api.http.post(path, json={"event": "batch.at_risk"}), DeliveryObject)
    assert (first.type, second.type) == ("batch.failed", "batch.at_risk")
    assert (first.batch_id, first.status, first.attempts) == (TEST_BATCH, "pending", [])
    assert {each.id for each in await deliveries(api, webhook.id)} == {first.id, second.id}


async def test_the_deliveries_of_an_event_are_listed_and_replayed(api: ApiFixture) -> None:
    webhook = await created(api)
    batch_id = await ended(api)
    (delivery,) = await deliveries(api, webhook.id)
    assert (delivery.type, delivery.batch_id, delivery.status) == ("batch.completed", batch_id, "pending")
    path = f"{WEBHOOKS}/{webhook.id}/deliveries/{delivery.id}"
    pending = await api.http.post(f"{path}/replay")
    assert (pending.status_code, "pending" in error_of(pending).message) == (409, True)
    await api.database.webhook_deliveries.give_up("default", delivery.id, "gone")
    assert [each.reason for each in await deliveries(api, webhook.id, status="failed")] == ["gone"]
    assert await deliveries(api, webhook.id, status="delivered") == []
    replayed = read(await api.http.post(f"{path}/replay"), DeliveryObject)
    assert (replayed.id, replayed.event_id, replayed.status) == (delivery.id, delivery.event_id, "pending")
    assert read(await api.http.get(path), DeliveryObject) == replayed


async def test_a_pending_delivery_shows_its_next_attempt_until_it_is_replayed(api: ApiFixture) -> None:
    webhook, table = await created(api), api.database.webhook_deliveries
    await ended(api)
    ((key, row),) = api.database.rows.webhook_deliveries.items()

    async def next_attempt_after(seconds: int) -> int | None:
        """Attempt the delivery so many seconds after NOW, and return when it is attempted again."""
        attempt = WebhookAttempt(at=NOW + timedelta(seconds=seconds), seconds=2, reason="Status 500.")
        await table.record_attempt(row, attempt, is_last=False, disable_after=timedelta(hours=72))
        (shown,) = await deliveries(api, webhook.id)
        return shown.next_attempt_at

    def at(seconds: int) -> int:
        return int((NOW + timedelta(seconds=seconds)).timestamp())

    (unattempted,) = await deliveries(api, webhook.id)
    shown = [unattempted.next_attempt_at, await next_attempt_after(0), await next_attempt_after(7)]
    assert shown == [None, at(2 + 5), at(9 + 10)]
    api.database.rows.webhook_deliveries[key] = row.model_copy(update={"replays": 1})
    assert await next_attempt_after(60) is None


async def test_a_pending_delivery_that_has_lost_its_workflow_is_replayed(api: ApiFixture) -> None:
    webhook = await created(api)
    await ended(api)
    table = api.database.webhook_deliveries
    await table.record_start((await table.unstarted(1))[0])
    ((key, row),) = api.database.rows.webhook_deliveries.items()
    path = f"{WEBHOOKS}/{webhook.id}/deliveries/{row.id}/replay"
    for hours, status in ((72.9, 409), (73.1, 200), (73.1, 409)):
        started_at = datetime.now(UTC) - timedelta(hours=hours)
        row = api.database.rows.webhook_deliveries[key]
        api.database.rows.webhook_deliveries[key] = row.model_copy(update={"started_at": started_at})
        assert (await api.http.post(path)).status_code == status


@pytest.mark.parametrize(
    "path", ["", "/rotate", "/test", "/deliveries", "/deliveries/wh_1", "/deliveries/wh_1/replay"]
)
async def test_an_unknown_webhook_is_404(api: ApiFixture, path: str) -> None:
    method = "POST" if path.rpartition("/")[2] in ("rotate", "test", "replay") else "GET"
    for id in (new_webhook_id(), "webhook_1", "a%00b"):
        answer = await api.http.request(method, f"{WEBHOOKS}/{id}{path}")
        assert answer.status_code == 404


async def test_an_unknown_delivery_or_cursor_is_404(api: ApiFixture) -> None:
    path = f"{WEBHOOKS}/{(await created(api)).id}/deliveries"
    for id in (new_delivery_id(), "wh_1"):
        assert (await api.http.get(f"{path}/{id}")).status_code == 404
        assert (await api.http.get(path, params={"after": id})).status_code == 404
    for id in (new_webhook_id(), "webhook_1"):
        assert (await api.http.get(WEBHOOKS, params={"after": id})).status_code == 404


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "url", "Missing required parameter: 'url'."),
        ({"url": 1}, "url", "expected a string"),
        ({"url": "ftp://a.example/"}, "url", "it must begin with https:// or http://"),
        ({"url": "https://user:geheim@a.example/"}, "url", "must not contain a user name or a password"),
        ({"url": "http://10.0.0.1/"}, "url", "the address 10.0.0.1 is not a public one"),
        ({"url": "http://[::1]/"}, "url", "the address ::1 is not a public one"),
        ({"url": "http://169.254.169.254/"}, "url", "is not a public one"),
        ({"url": "https://nowhere.invalid/"}, "url", "its host nowhere.invalid was not found, or"),
        ({"url": "https://a.example/" + "x" * 2048}, "url", "it has over 2048 characters"),
        ({"url": URL, "events": "batch.failed"}, "events", "expected an array"),
        ({"url": URL, "events": []}, "events", "name at least one event"),
        ({"url": URL, "events": ["batch.failed", "batch.sold"]}, "events[1]", "Unknown event 'batch.sold'."),
        ({"url": URL, "events": [None]}, "events[0]", "expected a string"),
        ({"url": URL, "events": 12 * ["batch.failed"]}, "events", "there are only 11 events"),
        ({"url": URL, "description": "x" * 257}, "description", "over 256 characters"),
        ({"url": URL, "details": "yes"}, "details", "expected a boolean"),
        ({"url": URL, "secret": SECRET}, "secret", "Unknown parameter"),
        ({"url": URL, "enabled": True}, "enabled", "Unknown parameter"),
    ],
)
async def test_a_webhook_that_is_not_valid_is_400(
    api: ApiFixture, body: dict[str, object], param: str, message: str
) -> None:
    got_param, got_message = await refused(api, body)
    assert got_param == param
    assert message in got_message
    assert "geheim" not in got_message
    assert read(await api.http.get(WEBHOOKS), WebhookPage).data == []


async def test_changes_that_are_not_valid_are_400(api: ApiFixture) -> None:
    path = f"{WEBHOOKS}/{(await created(api)).id}"
    for body, param in (
        ({"url": "http://10.0.0.1/"}, "url"),
        ({"events": ["batch.sold"]}, "events[0]"),
        ({"enabled": 1}, "enabled"),
        ({"color": "red"}, "color"),
    ):
        assert (await refused(api, body, path, "PATCH"))[0] == param
    assert (await refused(api, {"overlap_seconds": -1}, f"{path}/rotate"))[0] == "overlap_seconds"
    assert (await refused(api, {"overlap_seconds": 604_801}, f"{path}/rotate"))[0] == "overlap_seconds"
    assert (await refused(api, {"event": "batch.sold"}, f"{path}/test"))[0] == "event"
    assert (await refused(api, None, f"{path}/deliveries?status=sold", "GET"))[0] == "status"
    assert (await refused(api, None, f"{WEBHOOKS}?batch_id=1", "GET"))[0] == "batch_id"
