"""/v1/x/webhooks, and the webhook of a batch."""

import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from batchwright.api.services.webhooks import REQUESTED_PER_MINUTE
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.operator import LimitsObject
from batchwright.contracts.api_objects.webhook_events import END_EVENTS, TEST_BATCH, EventType
from batchwright.contracts.api_objects.webhooks import (
    DeliveryObject,
    DeliveryPage,
    WebhookObject,
    WebhookPage,
)
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.terms import BatchStatus, Quota, Usage
from batchwright.database.records import BatchOutcome
from batchwright.database.tables.webhooks.webhook_endpoints import EndpointChanges, WebhookEndpoint
from batchwright.rules.ids import new_delivery_id, new_webhook_id
from batchwright.rules.tenants.failure_limiter import FailureLimiter
from batchwright.rules.webhooks.signatures import check_secret, new_secret
from batchwright.temporal import TemporalUnavailable
from batchwright.webhooks.submitted_url_check import REFUSED_URLS_PER_MINUTE
from tests.fakes.api import ApiFixture, error_of, open_api, open_own_api, read

URL = "http://127.0.0.1:9/hook"
WEBHOOKS = "/v1/x/webhooks"
SECRET = new_secret(b"s" * 32)
NOW = datetime.now(UTC)
OUTCOME = BatchOutcome(status=BatchStatus.COMPLETED, completed=1, failed=0, usage=Usage())


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(webhook_allowed_networks=["127.0.0.0/8"], max_webhooks=3) as api:
        yield api


async def created(api: ApiFixture, **fields: object) -> WebhookObject:
    return read(await api.http.post(WEBHOOKS, json={"url": URL, **fields}), WebhookObject)


async def refused(
    api: ApiFixture, body: object, path: str = WEBHOOKS, method: str = "POST"
) -> tuple[str | None, str]:
    """Send a request that is not valid, and return the parameter and the message of the error."""
    answer = await api.http.request(method, path, json=body)
    assert answer.status_code == 400
    error = error_of(answer)
    return error.param, error.message


async def ended(api: ApiFixture) -> str:
    """Create a batch that has completed, and return its id."""
    batch = await api.create()
    models = [ModelCounts(model="llama", lines=1)]
    await api.database.batches.start("default", batch.id, total=1, models=models, at=NOW)
    await api.database.batches.finish("default", batch.id, OUTCOME, NOW)
    return batch.id


async def create_once(api: ApiFixture) -> httpx.Response:
    """Create a batch with a webhook. Each call sends the same request with the same idempotency key."""
    body = {
        "input_file_id": "file-" + 32 * "0",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "x_batchwright": {"webhook": {"url": URL}},
    }
    return await api.http.post("/v1/batches", json=body, headers={"Idempotency-Key": "once"})


async def deliveries(api: ApiFixture, id: str, **query: str) -> list[DeliveryObject]:
    return read(await api.http.get(f"{WEBHOOKS}/{id}/deliveries", params=query), DeliveryPage).data


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


async def test_a_tenant_may_have_only_so_many(api: ApiFixture) -> None:
    for _ in range(3):
        await created(api)
    answer = await api.http.post(WEBHOOKS, json={"url": URL})
    assert (answer.status_code, answer.headers["x-should-retry"]) == (429, "false")
    assert error_of(answer).message == (
        "Too many webhooks: you may have at most 3. Delete one, or give a batch a webhook of its own in "
        "`x_batchwright.webhook`."
    )
    batch = await api.create(x_batchwright={"webhook": {"url": URL}})
    assert batch.x_batchwright.webhook is not None


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
    """The first call was interrupted after the webhook was stored."""
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
    await api.database.batches.finish("default", batch.id, OUTCOME, NOW)
    assert await api.database.batch_deletions.remove("default", batch.id, NOW)
    assert (await create_once(api)).status_code == 409
    assert api.database.rows.webhook_endpoints == {}


async def test_a_repeated_creation_shows_no_secret_that_cannot_be_read(api: ApiFixture) -> None:
    """It was encrypted with a key that the operator has removed."""
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


async def test_a_tenant_cannot_make_others_urls_receive_any_number_of_events() -> None:
    async with open_api(webhook_allowed_networks=["127.0.0.0/8"], max_webhooks=4) as api:
        webhook = await created(api)
        path = f"{WEBHOOKS}/{webhook.id}/test"
        sent = [await api.http.post(path) for _ in range(REQUESTED_PER_MINUTE + 2)]
        assert [answer.status_code for answer in sent[:REQUESTED_PER_MINUTE]] == [200] * REQUESTED_PER_MINUTE
        replay = await api.http.post(f"{WEBHOOKS}/{webhook.id}/deliveries/{sent[0].json()['id']}/replay")
        for answer in (sent[-1], replay):
            assert (answer.status_code, error_of(answer).code) == (429, "rate_limit_exceeded")
            assert int(answer.headers["Retry-After"]) > 0
        assert len(api.database.rows.webhook_deliveries) <= REQUESTED_PER_MINUTE + 1


async def test_the_quota_of_a_tenant_overrides_the_setting_and_shows_what_is_left(api: ApiFixture) -> None:
    put = {"tenant": "default", "webhooks": 1}
    assert (await api.http.put("/admin/quotas", json=put)).status_code == 200
    webhook = await created(api)
    await api.create(x_batchwright={"webhook": {"url": URL}})
    assert (await api.http.post(WEBHOOKS, json={"url": URL})).status_code == 429
    limits = read(await api.http.get("/v1/x/limits"), LimitsObject)
    [shown] = [each for each in limits.data if each.quota is Quota.WEBHOOKS]
    assert (shown.limit, shown.used, shown.left) == (1, 1, 0)
    # Other tenants keep the quota of the setting.
    other = await api.http.post(WEBHOOKS, json={"url": URL}, headers={"X-Tenant": "red"})
    assert other.status_code == 200
    await api.http.delete(f"{WEBHOOKS}/{webhook.id}")
    await created(api)
    await api.http.put("/admin/quotas", json={"tenant": "default", "webhooks": 0})
    for _ in range(4):
        await created(api)


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass for new limiters, so that refused URLs count although the machine is slow."""
    monkeypatch.setattr(FailureLimiter.__init__, "__defaults__", (lambda: 0.0,))


@pytest.mark.usefixtures("stopped_clock")
async def test_a_tenant_cannot_make_the_api_look_up_any_number_of_hosts() -> None:
    async with open_own_api(webhook_allowed_networks=["127.0.0.0/8"], max_webhooks=5) as api:
        bad = [await api.http.post(WEBHOOKS, json={"url": "http://10.0.0.1/"}) for _ in range(61)]
        assert [answer.status_code for answer in bad[:REFUSED_URLS_PER_MINUTE]] == [400] * 60
        assert (bad[-1].status_code, error_of(bad[-1]).code) == (429, "rate_limit_exceeded")
        other = await api.http.post(WEBHOOKS, json={"url": URL}, headers={"X-Tenant": "red"})
        assert other.status_code == 200


@pytest.mark.usefixtures("stopped_clock")
async def test_all_routes_count_the_refused_urls_of_a_tenant_together() -> None:
    bad = "http://10.0.0.1/"
    async with open_own_api() as api:
        for _ in range(REFUSED_URLS_PER_MINUTE):
            await refused(api, {"url": bad})
        batch = {
            "input_file_id": "file-" + 32 * "0",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "x_batchwright": {"webhook": {"url": bad}},
        }
        job: dict[str, object] = {"model": "llama", "payload": {"messages": list[str]()}, "callback_url": bad}
        for path, body in ((WEBHOOKS, {"url": bad}), ("/v1/batches", batch), ("/queue/submit", job)):
            answer = await api.http.post(path, json=body)
            assert (path, answer.status_code) == (path, 429)


async def test_urls_that_are_allowed_do_not_count_as_refused() -> None:
    async with open_api(webhook_allowed_networks=["127.0.0.0/8"], max_webhooks=0) as api:
        for _ in range(REFUSED_URLS_PER_MINUTE + 2):
            await created(api)
