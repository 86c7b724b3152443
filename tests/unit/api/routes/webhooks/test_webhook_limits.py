"""Limits of a tenant for its webhooks, requested events and refused URLs."""

import pytest

from batchwright.api.services.webhooks import REQUESTED_PER_MINUTE
from batchwright.contracts.api_objects.quotas import LimitsObject
from batchwright.contracts.terms import Quota
from batchwright.webhooks.submitted_url_check import REFUSED_URLS_PER_MINUTE
from tests.clocks import stop_time_of_limiters
from tests.fakes.api import ApiFixture, error_of, open_api, open_own_api, read
from tests.unit.api.routes.webhooks.webhook_requests import URL, WEBHOOKS, created, refused


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_time_of_limiters(monkeypatch)


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


@pytest.mark.usefixtures("stopped_clock")
async def test_a_tenant_cannot_make_others_urls_receive_any_number_of_events() -> None:
    async with open_own_api(webhook_allowed_networks=["127.0.0.0/8"], max_webhooks=4) as api:
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
