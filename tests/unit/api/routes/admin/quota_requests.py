"""Requests that change a quota and read what is left of it."""

import httpx

from batchwright.contracts.api_objects.quotas import LimitsObject
from batchwright.contracts.terms import Quota
from tests.fakes.api import ApiFixture, read


async def put(api: ApiFixture, **fields: object) -> httpx.Response:
    return await api.http.put("/admin/quotas", json={"tenant": "default", **fields})


async def limits(api: ApiFixture, tenant: str = "default") -> dict[Quota, tuple[int | str | None, ...]]:
    answer = await api.http.get("/v1/x/limits", headers={"X-Tenant": tenant})
    return {one.quota: (one.limit, one.used, one.left) for one in read(answer, LimitsObject).data}
