"""The pages of operators: they show the batches of all tenants, and have forms for dead letters
and API keys.
"""

import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.temporal_names import CONTROL_QUEUE, IO_QUEUE
from batchwright.contracts.terms import Quota
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource
from batchwright.rules.tenants.scopes import Scope
from batchwright.rules.worker_stats import UpstreamTraffic, polled_queue_stats
from tests.fakes.api import ApiFixture, open_api
from tests.fakes.api_keys import create_key
from tests.unit.api.routes.admin.test_dead_letters import ended
from tests.unit.api.ui.browser import Browser, text_of


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def test_the_batches_and_quotas_of_all_tenants_are_shown(api: ApiFixture, browser: Browser) -> None:
    batches = [await api.create(tenant) for tenant in ("blue", "red")]
    page = text_of(await browser.page("/ui/operator/batches"))
    assert all(batch.id in page for batch in batches)
    assert "validating: 2" in page
    page = text_of(await browser.page("/ui/operator/batches?tenant=red"))
    assert [batch.id in page for batch in batches] == [False, True]
    await api.database.quotas.change("amber", {Quota.LIVE_BATCHES: 3}, datetime.now(UTC))
    page = text_of(await browser.page("/ui/operator/tenants"))
    assert "amber live batches: 3" in page
    assert "blue 1 validating" in page
    assert "live batches 0 3 3" in text_of(await browser.page("/ui/operator/tenants/amber/limits"))
    limits = text_of(await browser.page("/ui/limits"))
    assert "What the tenant default may use" in limits
    assert "tokens per day 0 no limit no limit" in limits


async def test_an_operator_pauses_and_cancels_the_batch_of_a_tenant(
    api: ApiFixture, browser: Browser
) -> None:
    batch = await api.create("red")
    path = f"/ui/operator/batches/{batch.id}"
    page = await browser.page("/ui/operator/batches")
    paused = await browser.send(page, f"{path}/pause")
    cancelled = await browser.send(paused.text, f"{path}/cancel")
    assert "cancelling" in cancelled.text
    assert api.temporal.signals == [(batch.id, "pause"), (batch.id, "cancel")]


async def test_only_the_one_of_pause_and_resume_that_applies_is_offered(
    api: ApiFixture, browser: Browser
) -> None:
    batch = await api.create("red")
    path = f"/ui/operator/batches/{batch.id}"
    page = await browser.page("/ui/operator/batches")
    assert (f"{path}/pause" in page, f"{path}/resume" in page) == (True, False)
    paused = (await browser.send(page, f"{path}/pause")).text
    assert (f"{path}/pause" in paused, f"{path}/resume" in paused) == (False, True)
    assert "validating, paused" in text_of(paused)


async def test_a_batch_that_waits_shows_the_first_reason_in_lists(api: ApiFixture, browser: Browser) -> None:
    batch = await api.create()
    now = datetime.now(UTC)
    for model in ("llama", "qwen"):
        await api.database.waiting.report(
            WaitingRow(
                tenant="default",
                batch_id=batch.id,
                source=WaitingSource.FLEET,
                model=model,
                reason="no worker polls <b>",
                since=now,
                until=now + timedelta(minutes=1),
            )
        )
    await api.database.workers.record_heartbeat("one:1", polled_queue_stats([CONTROL_QUEUE, IO_QUEUE]))
    for path in ("/ui/operator/batches", "/ui/batches"):
        page = await browser.page(path)
        assert "waits: llama : no worker polls <b> ; 1 more" in text_of(page)
        assert "&lt;b&gt;" in page


async def test_ids_link_to_the_pages_that_the_visitor_can_open(api: ApiFixture, browser: Browser) -> None:
    own, foreign = await api.create(), await api.create("red")
    for path in ("/ui/operator/batches", "/ui/operator/audit-log"):
        for batch in (own, foreign):
            await api.http.post(f"/admin/batches/{batch.id}/priority", json={"priority": 5})
        page = await browser.page(path)
        assert f'href="/ui/batches/{own.id}"' in page
        assert foreign.id in page
        assert f'href="/ui/batches/{foreign.id}"' not in page
        assert 'href="/ui/operator/batches?tenant=red"' in page


async def test_models_are_shown_with_their_backends(api: ApiFixture, browser: Browser) -> None:
    await api.http.put("/admin/models/mine", json={"backends": [{"url": "http://backend:8000"}]})
    page = text_of(await browser.page("/ui/operator/models"))
    assert "mine http://backend:8000 change" in page


async def test_a_dead_letter_is_retried_or_deleted(api: ApiFixture, browser: Browser) -> None:
    await ended(api, [0, 2])
    page = await browser.page("/ui/operator/dead-letters")
    assert ("é0" in page, "é2" in page) == (True, True)
    [first, second] = [row for row in page.split("<tr>") if "/delete" in row]
    retried = await browser.send(first, "/ui/operator/dead-letters/")
    [batch] = [row.order for row in api.database.rows.batches.values() if row.order.origin is not None]
    assert batch.batch_id in retried.text
    [delete] = [part for part in second.split("<details") if "/delete" in part]
    deleted = await browser.send(delete, "/ui/operator/dead-letters/")
    assert len(api.database.rows.dead_letters) == 1
    log = text_of(await browser.page("/ui/operator/audit-log"))
    assert deleted.status_code == 200
    assert "dead_letter.delete" in log
    assert "dead_letter.retry" in log


async def test_the_audit_log_has_one_word_for_an_action(api: ApiFixture, browser: Browser) -> None:
    await api.http.put("/admin/models/mine", json={"backends": [{"url": "http://backend:8000"}]})
    page = await browser.page("/ui/operator/audit-log")
    assert '<input name="action"' in page
    assert "<th>Action</th>" in page
    assert "Act</th>" not in page


async def test_the_audit_log_does_not_break_addresses(api: ApiFixture, browser: Browser) -> None:
    await api.http.put("/admin/models/mine", json={"backends": [{"url": "http://backend:8000"}]})
    assert '<td data-name="From" class="whole">127.0.0.1</td>' in await browser.page("/ui/operator/audit-log")


async def test_models_show_open_circuits_and_tokens_per_second(api: ApiFixture, browser: Browser) -> None:
    await api.http.put("/admin/models/mine", json={"backends": [{"url": "http://backend:8000"}]})
    traffic = UpstreamTraffic(
        model="mine", backend="http://backend:8000", requests=3, tokens_per_second=1234.4, open_circuits=1
    )
    await api.database.workers.record_heartbeat("one:1", {}, traffic=[traffic])
    page = text_of(await browser.page("/ui/operator/models"))
    assert "http://backend:8000 circuit open in 1 of 1 workers" in page
    assert "3 0 ms 1,234" in page


async def test_a_backend_without_requests_has_no_average_latency(api: ApiFixture, browser: Browser) -> None:
    await api.http.put("/admin/models/mine", json={"backends": [{"url": "http://backend:8000"}]})
    traffic = UpstreamTraffic(model="mine", backend="http://backend:8000", pending=1)
    await api.database.workers.record_heartbeat("one:1", {}, traffic=[traffic])
    assert " ms" not in text_of(await browser.page("/ui/operator/models"))


async def test_workers_show_what_they_do_and_that_their_registries_differ(
    api: ApiFixture, browser: Browser
) -> None:
    assert "No worker is alive" in text_of(await browser.page("/ui/operator/workers"))
    stats = {"in_flight": 7.0, **polled_queue_stats(["inference.m"])}
    await api.database.workers.record_heartbeat("one:1", stats, "abc")
    page = text_of(await browser.page("/ui/operator/workers"))
    assert "one:1 7 0 0 inference.m abc" in page
    assert "different model registries" not in page
    await api.database.workers.record_heartbeat("two:1", {}, "def")
    assert "different model registries" in text_of(await browser.page("/ui/operator/workers"))


def new_key_form(page: str) -> str:
    """Return the last form of the page of keys. The forms before it revoke keys."""
    return '<form class="stack"' + page.rpartition('<form class="stack"')[2]


async def test_an_admin_creates_a_key_sees_it_once_and_revokes_it() -> None:
    async with open_api(auth="api_key") as api:
        browser = Browser(api)
        await browser.sign_in(await create_key(api.database, "ops", scopes=[Scope.ADMIN]))
        await api.database.tenants.create("blue", datetime.now(UTC))
        page = await browser.page("/ui/operator/keys")
        label = "<b>nightly</b>"
        fields = {"tenant": "blue", "label": label, "scope_read": "on", "expires_in_days": "7"}
        created = (await browser.send(new_key_form(page), "/ui/operator/keys", **fields)).text
        [secret] = re.findall("bw_[a-z0-9]{12}_[A-Za-z0-9]{40}", created)
        assert label not in created
        headers = {"Authorization": f"Bearer {secret}"}
        assert (await api.http.get("/v1/files", headers=headers)).status_code == 200
        page = await browser.page("/ui/operator/keys?tenant=blue")
        assert secret not in page
        assert f"{label} valid until" in text_of(page.replace("<small>", ""))
        page = (await browser.send(page, "/ui/operator/keys/")).text
        assert "revoked" in page
        for days in ("x", "9" * 5_000):
            fields = {"tenant": "blue", "expires_in_days": days}
            refused = await browser.send(new_key_form(page), "/ui/operator/keys", **fields)
            assert refused.status_code == 400


async def test_only_an_admin_gets_the_forms_for_keys() -> None:
    async with open_api(auth="api_key") as api:
        browser = Browser(api)
        await browser.sign_in(await create_key(api.database, "ops", scopes=[Scope.OPERATOR]))
        page = await browser.page("/ui/operator/keys")
        assert "Revoke" not in page
        assert "Create the key" not in page


async def test_status_and_forecast_are_chosen_from_a_list(browser: Browser) -> None:
    page = await browser.page("/ui/operator/batches?status=live&forecast=late")
    assert '<option value="live" selected>live</option>' in page
    assert '<option value="in_progress">in progress</option>' in page
    assert '<option value="late" selected>late</option>' in page
    assert '<input name="tenant" value="">' in page
