"""Requests that change a model and read its settings."""

import httpx

from batchwright.contracts.api_objects.operator import ModelSettingsObject
from tests.fakes.api import ApiFixture, read

LLAMA = "/admin/models/llama"


async def patch(
    api: ApiFixture, model: str, body: dict[str, object], if_match: str | None = None
) -> httpx.Response:
    headers = {} if if_match is None else {"If-Match": if_match}
    return await api.http.patch(f"/admin/models/{model}", json=body, headers=headers)


async def shown(api: ApiFixture, model: str = "llama") -> ModelSettingsObject:
    return read(await api.http.get(f"/admin/models/{model}"), ModelSettingsObject)


def values(found: ModelSettingsObject) -> dict[str, object]:
    return {name: setting.value for name, setting in found.settings.items()}


def origins(found: ModelSettingsObject) -> dict[str, str]:
    return {name: setting.origin for name, setting in found.settings.items()}


def urls(found: ModelSettingsObject) -> list[str]:
    return [backend.url for backend in found.backends]
