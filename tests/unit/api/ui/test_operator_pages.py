"""The pages of operators: they show all tenants, and their forms act on dead letters."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest

from batchwright.contracts.openai import Quota
from tests.fakes.api import ApiFixture, open_api
from tests.unit.api.routes.admin.test_dead_letters import ended
from tests.unit.api.ui.browser import Browser, text_of


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


@pytest.fixture
def browser(api: ApiFixture) -> Browser:
    return Browser(api)


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
    [delete] = [part for part in second.split("<details>") if "/delete" in part]
    deleted = await browser.send(delete, "/ui/operator/dead-letters/")
    assert len(api.database.rows.dead_letters) == 1
    log = text_of(await browser.page("/ui/operator/audit-log"))
    assert deleted.status_code == 200
    assert "dead_letter.delete" in log
    assert "dead_letter.retry" in log
