"""/admin/holds: hold and release a tenant or a model."""

from collections.abc import AsyncGenerator

import pytest

from batchwright.contracts.api_objects.operator import HoldList
from tests.fakes.api import ApiFixture, error_of, open_api, read


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


def names(page: HoldList) -> list[tuple[str | None, str | None]]:
    return [(each.tenant, each.model) for each in page.data]


async def test_a_tenant_and_a_model_are_held_and_released(api: ApiFixture) -> None:
    await api.http.put("/admin/holds", json={"tenant": "red"})
    held = read(await api.http.put("/admin/holds", json={"model": "org/qwen:7b"}), HoldList)
    assert names(held) == [(None, "org/qwen:7b"), ("red", None)]
    assert read(await api.http.get("/admin/holds"), HoldList) == held
    assert names(read(await api.http.delete("/admin/holds?tenant=red"), HoldList)) == [(None, "org/qwen:7b")]
    for _ in range(2):
        released = await api.http.delete("/admin/holds", params={"model": "org/qwen:7b"})
        assert names(read(released, HoldList)) == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "tenant"),
        ({"tenant": "red", "model": "m"}, "model"),
        ({"tenant": "no/tenant"}, "tenant"),
        ({"tenant": 1}, "tenant"),
        ({"model": ""}, "model"),
        ({"model": "x" * 257}, "model"),
        ({"batch": "b"}, "batch"),
    ],
)
async def test_a_wrong_hold_is_a_400_that_names_the_parameter(
    api: ApiFixture, body: dict[str, object], param: str
) -> None:
    answer = await api.http.put("/admin/holds", json=body)
    assert (answer.status_code, error_of(answer).param) == (400, param)
    assert api.database.rows.holds == {}


@pytest.mark.parametrize(
    ("query", "param"), [("", "tenant"), ("tenant=a&model=b", "model"), ("model=", "model"), ("of=a", "of")]
)
async def test_a_release_that_names_nothing_known_is_a_400(api: ApiFixture, query: str, param: str) -> None:
    await api.http.put("/admin/holds", json={"tenant": "a"})
    answer = await api.http.delete(f"/admin/holds?{query}")
    assert (answer.status_code, error_of(answer).param) == (400, param)
    assert len(api.database.rows.holds) == 1


async def test_holds_and_releases_are_logged(api: ApiFixture, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        await api.http.put("/admin/holds", json={"tenant": "red"})
        await api.http.delete("/admin/holds?model=m")
    entries = [vars(each) for each in caplog.records if each.name == "batchwright.api.routes.admin.holds"]
    assert [entry["message"] for entry in entries] == ["held by an operator", "released by an operator"]
    assert (entries[0]["of_tenant"], entries[1]["model"]) == ("red", "m")
