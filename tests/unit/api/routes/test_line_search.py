"""GET /v1/batches?custom_id=: search for the batches that have a line with this custom id."""

import asyncio
from collections.abc import AsyncGenerator

import httpx
import pytest

from batchwright.api.dependencies import now
from batchwright.contracts.api_objects.openai import BatchPage
from batchwright.database.tables.batches.custom_ids import FoundBatches
from tests.fakes.api import ApiFixture, open_api, open_own_api, read
from tests.fakes.tables.batches.custom_ids import part_of


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def test_a_list_contains_the_batches_of_a_line(api: ApiFixture) -> None:
    first, _, third = [await api.create(metadata={"run": str(number)}) for number in range(3)]
    other = await api.create("other")
    for batch, tenant in ((first, "default"), (third, "default"), (other, "other")):
        await api.database.custom_ids.store(tenant, batch.id, 0, part_of("a/ü &"))
        await api.database.batches.start(tenant, batch.id, total=1, models=[], at=now())

    async def page(**query: str) -> BatchPage:
        return read(await api.http.get("/v1/batches", params={"custom_id": "a/ü &", **query}), BatchPage)

    whole = await page()
    assert [batch.id for batch in whole.data] == [third.id, first.id]
    assert (whole.first_id, whole.last_id, whole.has_more) == (third.id, first.id, False)
    start = await page(limit="1")
    assert ([batch.id for batch in start.data], start.last_id, start.has_more) == ([third.id], third.id, True)
    assert [batch.id for batch in (await page(limit="1", after=third.id)).data] == [first.id]
    assert [batch.id for batch in (await page(**{"metadata[run]": "0"})).data] == [first.id]
    assert await page(custom_id="a/ü") == BatchPage(data=[], first_id=None, last_id=None, has_more=False)
    assert (
        await api.http.get("/v1/batches", params={"custom_id": "a", "after": other.id})
    ).status_code == 404


async def test_an_empty_page_of_a_long_search_names_the_batch_after_which_it_continues(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def search(*_: object, **__: object) -> FoundBatches:
        return FoundBatches([], "batch_1")

    monkeypatch.setattr(api.database.custom_ids, "search", search)
    monkeypatch.setattr(api.database.operator_batches, "search", search)
    for path in ("/v1/batches", "/admin/batches"):
        page = read(await api.http.get(path, params={"custom_id": "a"}), BatchPage)
        assert page == BatchPage(data=[], first_id=None, last_id="batch_1", has_more=True)


async def test_a_tenant_searches_twice_at_a_time_and_delays_no_other_tenant(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Queue[str](), asyncio.Event()

    async def search(tenant: str, *_: object, **__: object) -> FoundBatches:
        begun.put_nowait(tenant)
        await go_on.wait()
        return FoundBatches([], None)

    monkeypatch.setattr(api.database.custom_ids, "search", search)

    def request(custom_id: str, tenant: str) -> "asyncio.Task[httpx.Response]":
        query, headers = {"custom_id": custom_id}, {"X-Tenant": tenant}
        return asyncio.create_task(api.http.get("/v1/batches", params=query, headers=headers))

    requests = [request(each, "busy") for each in "abc"]
    assert [await begun.get() for _ in range(2)] == ["busy", "busy"]
    requests.append(request("a", "other"))
    assert await begun.get() == "other"
    go_on.set()
    assert [answer.status_code for answer in await asyncio.gather(*requests)] == [200] * 4
    assert begun.get_nowait() == "busy"


@pytest.mark.parametrize(("connections", "most"), [(10, 4), (5, 2), (2, 1)])
async def test_tenants_and_operators_share_the_searches_of_a_process(
    monkeypatch: pytest.MonkeyPatch, connections: int, most: int
) -> None:
    monkeypatch.setattr("batchwright.api.services.batches.line_search._WAIT_SECONDS", 0.0)
    begun, go_on = list[str](), asyncio.Event()

    async def search(*_: object, **__: object) -> FoundBatches:
        begun.append("")
        if len(begun) > most:
            go_on.set()
        await go_on.wait()
        return FoundBatches([], None)

    async with open_own_api(database_pool_size=connections) as api:
        monkeypatch.setattr(api.database.custom_ids, "search", search)
        monkeypatch.setattr(api.database.operator_batches, "search", search)

        async def status(path: str, tenant: str) -> int:
            answer = await api.http.get(path, params={"custom_id": "a"}, headers={"X-Tenant": tenant})
            if answer.status_code == 429:  # all places are taken
                go_on.set()
            return answer.status_code

        requests = [status("/v1/batches", f"tenant-{number}") for number in range(most)]
        answers = await asyncio.gather(*requests, status("/admin/batches", "default"))
    assert (sorted(answers), len(begun)) == ([200] * most + [429], most)
