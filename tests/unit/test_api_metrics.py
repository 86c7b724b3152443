"""/metrics of the API: open for scrapes, but what names tenants is the operator's."""

from collections.abc import AsyncGenerator, Mapping

import httpx
import pytest

from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.api_keys import ApiKey, Scope
from tests.fakes.api import House, error_of, open_house
from tests.fakes.keys import made_key

REFUSED = 'batchwright_api_refusals_total{reason="no_key"}'


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house(auth="api_key") as house:
        yield house
        house.metrics.quota_refusals.clear()


async def scraped(
    house: House, key: ApiKey | None = None, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    house.metrics.quota_refusals.clear()
    house.metrics.quota_refusals.labels("blue-secret", "live_batches").inc()
    bearer = {} if key is None else {"Authorization": f"Bearer {key.text}"}
    return await house.http.get("/metrics", headers={**bearer, **(headers or {})})


async def test_who_has_no_key_reads_nothing_of_tenants(house: House) -> None:
    await house.http.get("/v1/files")
    answer = await scraped(house)
    assert answer.status_code == 200
    assert REFUSED in answer.text
    assert "blue-secret" not in answer.text


async def test_a_key_of_an_operator_reads_all(house: House) -> None:
    answer = await scraped(house, await made_key(house.database, "operators", scopes=[Scope.ADMIN]))
    assert "blue-secret" in answer.text


async def test_a_key_that_does_not_open_them_is_refused(house: House) -> None:
    answer = await scraped(house, await made_key(house.database, "red", scopes=[Scope.READ, Scope.WRITE]))
    assert (answer.status_code, error_of(answer).code) == (403, "missing_scope")
    wrong = await house.http.get("/metrics", headers={"Authorization": "Bearer bw_x"})
    assert (wrong.status_code, error_of(wrong).code) == (401, "invalid_api_key")


async def test_a_scrape_is_answered_while_the_database_is_away(house: House) -> None:
    key = await made_key(house.database, "operators")
    house.database.rows.failing = DatabaseUnavailable("away")
    answer = await scraped(house, key)
    assert answer.status_code == 200
    assert "blue-secret" not in answer.text


@pytest.mark.parametrize(("scopes", "shown"), [("read write", False), ("admin", True)])
async def test_behind_a_gateway_the_scopes_that_it_tells_decide(scopes: str, shown: bool) -> None:
    settings = {"auth": "trusted_header", "scopes_header": "X-Scopes", "default_tenant": ""}
    async with open_house(**settings) as house:
        told = await scraped(house, headers={"X-Tenant": "red", "X-Scopes": scopes})
        direct = await scraped(house)
        house.metrics.quota_refusals.clear()
    assert ("blue-secret" in told.text) == shown
    assert (direct.status_code, "blue-secret" in direct.text) == (200, False)
