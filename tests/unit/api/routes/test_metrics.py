"""/metrics of the API: everyone may read it, but metrics with the names of tenants are only for operators."""

from collections.abc import AsyncGenerator, Mapping

import httpx
import pytest

from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.tenants.api_keys import ApiKey
from batchwright.rules.tenants.scopes import Scope
from tests.fakes.api import ApiFixture, error_of, open_api
from tests.fakes.api_keys import create_key

REFUSED = 'batchwright_api_refusals_total{reason="no_key"}'


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(auth="api_key") as api:
        yield api
        api.metrics.quota_refusals.clear()


async def scraped(
    api: ApiFixture, key: ApiKey | None = None, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    api.metrics.quota_refusals.clear()
    api.metrics.quota_refusals.labels("blue-secret", "live_batches").inc()
    bearer = {} if key is None else {"Authorization": f"Bearer {key.text}"}
    return await api.http.get("/metrics", headers={**bearer, **(headers or {})})


async def test_metrics_without_a_key_show_no_tenants(api: ApiFixture) -> None:
    await api.http.get("/v1/files")
    answer = await scraped(api)
    assert answer.status_code == 200
    assert REFUSED in answer.text
    assert "blue-secret" not in answer.text


async def test_metrics_with_an_operator_key_show_everything(api: ApiFixture) -> None:
    answer = await scraped(api, await create_key(api.database, "operators", scopes=[Scope.ADMIN]))
    assert "blue-secret" in answer.text


async def test_a_key_without_the_scope_is_refused(api: ApiFixture) -> None:
    answer = await scraped(api, await create_key(api.database, "red", scopes=[Scope.READ, Scope.WRITE]))
    assert (answer.status_code, error_of(answer).code) == (403, "missing_scope")
    wrong = await api.http.get("/metrics", headers={"Authorization": "Bearer bw_x"})
    assert (wrong.status_code, error_of(wrong).code) == (401, "invalid_api_key")


async def test_a_scrape_is_answered_while_the_database_is_unavailable(api: ApiFixture) -> None:
    key = await create_key(api.database, "operators")
    api.database.rows.failing = DatabaseUnavailable("away")
    answer = await scraped(api, key)
    assert answer.status_code == 200
    assert "blue-secret" not in answer.text


@pytest.mark.parametrize(("scopes", "shown"), [("read write", False), ("admin", True)])
async def test_behind_a_gateway_the_scopes_in_its_header_decide(scopes: str, shown: bool) -> None:
    settings = {"auth": "trusted_header", "scopes_header": "X-Scopes", "default_tenant": ""}
    async with open_api(**settings) as api:
        scrape = await scraped(api, headers={"X-Tenant": "red", "X-Scopes": scopes})
        direct = await scraped(api)
        api.metrics.quota_refusals.clear()
    assert ("blue-secret" in scrape.text) == shown
    assert (direct.status_code, "blue-secret" in direct.text) == (200, False)
