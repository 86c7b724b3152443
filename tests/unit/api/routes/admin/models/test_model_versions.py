"""Versions of a model's settings: a change that names an outdated version is refused."""

from collections.abc import Callable, Sequence
from datetime import datetime

import httpx
import pytest

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.contracts.model_registry.stored_models import ModelChange
from tests.fakes.api import ApiFixture, error_of
from tests.fakes.tables.models.models import MemoryModelChanges
from tests.unit.api.routes.admin.models.model_settings import LLAMA, patch, shown, urls

CHANGES = [
    ("PUT", LLAMA, {"backends": [{"url": "http://x"}]}),
    ("PATCH", LLAMA, {"limits": {"in_flight": 8}}),
    ("DELETE", LLAMA, None),
    ("PUT", "/admin/model-configs/llama", {"max_retries": 3}),
    ("DELETE", "/admin/model-configs/llama", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_a_change_of_an_outdated_version_is_refused(
    api: ApiFixture, method: str, path: str, body: dict[str, object] | None
) -> None:
    stale = (await api.http.get(LLAMA)).headers["etag"]
    assert stale == '"0"'
    present = (await patch(api, "llama", {"aliases": ["theirs"]})).headers["etag"]
    before = await shown(api)
    for tags in (stale, f"W/{present}", '"999", "0"'):
        refused = await api.http.request(method, path, json=body, headers={"If-Match": tags})
        assert (refused.status_code, error_of(refused).code) == (412, "version_conflict")
        assert refused.headers["etag"] == present
        assert f"its version is {before.version} now" in error_of(refused).message
    assert await shown(api) == before
    done = await api.http.request(method, path, json=body, headers={"If-Match": f"{stale}, {present}"})
    assert done.status_code == 200
    assert done.headers["etag"] != present


async def test_any_version_will_do_without_if_match_or_with_an_asterisk(api: ApiFixture) -> None:
    await patch(api, "llama", {"limits": {"in_flight": 8}})
    assert (await patch(api, "llama", {"limits": {"in_flight": 9}})).status_code == 200
    assert (await patch(api, "llama", {"limits": {"in_flight": 10}}, "*")).status_code == 200


@pytest.mark.parametrize("tag", ["7", '"a"', '""', '"' + "9" * 30 + '"'])
async def test_an_invalid_etag_is_a_400(api: ApiFixture, tag: str) -> None:
    refused = await patch(api, "llama", {"limits": {"in_flight": 8}}, tag)
    assert (refused.status_code, error_of(refused).param) == (400, "If-Match")


async def test_a_model_is_registered_only_if_there_is_none(api: ApiFixture) -> None:
    async def register(model: str) -> httpx.Response:
        headers, body = {"If-None-Match": "*"}, {"backends": [{"url": "http://x"}]}
        return await api.http.put(f"/admin/models/{model}", json=body, headers=headers)

    refused = await register("llama")
    assert (refused.status_code, error_of(refused).param) == (412, "If-None-Match")
    assert (await register("new")).status_code == 200
    assert (await register("new")).status_code == 412
    await api.http.delete("/admin/models/new")
    assert (await register("new")).status_code == 200


@pytest.mark.parametrize("first", ["none", "removed"])
async def test_of_two_registrations_at_once_the_second_is_refused(
    api: ApiFixture, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if first == "removed":
        await api.http.put("/admin/models/new", json={"backends": [{"url": "http://before"}]})
        await api.http.delete("/admin/models/new")
    put = MemoryModelChanges.put

    async def late(
        changes: MemoryModelChanges,
        model: str,
        config: ModelConfig | None,
        at: datetime,
        check: Callable[[list[ModelChange]], None],
        expected: Sequence[int] | None = None,
    ) -> list[ModelChange]:
        theirs = ModelConfig(backends=[BackendConfig(url="http://theirs")])
        await put(changes, model, theirs, at, check)
        return await put(changes, model, config, at, check, expected)

    monkeypatch.setattr(MemoryModelChanges, "put", late)
    body, headers = {"backends": [{"url": "http://ours"}]}, {"If-None-Match": "*"}
    refused = await api.http.put("/admin/models/new", json=body, headers=headers)
    assert (refused.status_code, error_of(refused).code) == (412, "version_conflict")
    assert urls(await shown(api, "new")) == ["http://theirs"]
