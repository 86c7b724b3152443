"""/admin/models and /admin/model-configs: list, change, and rejected changes."""

from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from batchwright.contracts.api_objects.operator import ModelSettingsObject, RegisteredModel, RegisteredModels
from batchwright.database.errors import DatabaseUnavailable
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.integration.database.rows import START

FILE = """
models:
  llama:
    backends: [{url: "http://one:8000/v1", weight: 2, api_key_name: gateway}]
    aliases: [gpt]
    fallbacks: [qwen]
  qwen:
    backends: [{url: "http://two", model: org/qwen}]
"""
BACKEND = {"url": "http://three"}
CALLED: dict[str, object] = {"kind": "callback", "jobs": {"callback_header": "X-Hook"}}
WRONG: list[tuple[dict[str, object], str, str, str]] = [
    ({}, "missing_required_parameter", "backends", "Missing"),
    ({"backends": []}, "invalid_value", "backends", "at least 1 of them"),
    ({"backends": [{}]}, "missing_required_parameter", "backends[0].url", "Missing"),
    ({"backends": [BACKEND], "x": 1}, "unknown_parameter", "x", "there are aliases, backends"),
    ({"backends": [{**BACKEND, "x": 1}]}, "unknown_parameter", "backends[0].x", "there are api_key_env"),
    ({"backends": [{**BACKEND, "weight": 0}]}, "invalid_value", "backends[0].weight", "than 0; it is 0"),
    (
        {"backends": [BACKEND], "limits": {"in_flight": 10**20}},
        "invalid_value",
        "limits.in_flight",
        "it must be a smaller number",
    ),
    ({"backends": [{"url": "ftp://x"}]}, "invalid_value", "backends[0].url", "it is 'ftp://x'"),
    (
        {"backends": [{"url": "http://three/v1"}, {**BACKEND, "weight": 2}]},
        "invalid_value",
        "backends",
        "it has the backend http://three twice: remove one",
    ),
    (
        {"backends": [BACKEND, {**BACKEND, "model": "new"}]},
        "invalid_value",
        "backends",
        "it has the backend http://three twice: remove one",
    ),
    ({"backends": [{"url": "http://x:99999"}]}, "invalid_value", "backends[0].url", "1 to 65535"),
    ({"backends": [{"url": "http://[::x"}]}, "invalid_value", "backends[0].url", "with a host"),
    ({"backends": [{"url": "http://1.2.3.999"}]}, "invalid_value", "backends[0].url", "is not an IP address"),
    ({"backends": [{**BACKEND, "model": "\0"}]}, "invalid_value", "backends[0].model", "NUL"),
    (
        {"backends": [{**BACKEND, "request_timeout": "9" * 400 + "h"}]},
        "invalid_value",
        "backends[0].request_timeout",
        "a duration such as",
    ),
    (
        {"backends": [{**BACKEND, "api_key_env": "HOME"}]},
        "invalid_value",
        "backends[0].api_key_env",
        "only",
    ),
    (
        {"backends": [{**BACKEND, "api_key_file": "/x"}]},
        "invalid_value",
        "backends[0].api_key_file",
        "only",
    ),
    (
        {"backends": [{**BACKEND, "api_key_name": "database"}]},
        "invalid_value",
        "backends[0].api_key_name",
        "only values that the file uses are allowed (gateway)",
    ),
    (
        {"backends": [{**BACKEND, "api_key_name": "gateway"}]},
        "invalid_value",
        "backends[0].api_key_name",
        "sent to http://one only",
    ),
    (
        {"backends": [{"url": "http://one.elsewhere.example", "api_key_name": "gateway"}]},
        "invalid_value",
        "backends[0].api_key_name",
        "at 'http://one.elsewhere.example': add it there first",
    ),
    (
        {"backends": [{**BACKEND, "tls_ca_cert_file": "/etc/passwd"}]},
        "invalid_value",
        "backends[0].tls_ca_cert_file",
        "(none): add it there first",
    ),
    (
        {"backends": [BACKEND, {"url": "http://four", "headers": {"traceparent": "k"}}]},
        "invalid_value",
        "backends[1].headers",
        "the header 'traceparent' of the backend http://four of 'new' would replace the trace",
    ),
    (
        {"backends": [{**BACKEND, "headers": {"Content-Length": "1"}}]},
        "invalid_value",
        "backends[0].headers",
        "'Content-Length' is set by Batchwright itself",
    ),
    (
        {"backends": [{**BACKEND, "headers": {"x-hook": "k"}}], **CALLED},
        "invalid_value",
        "backends[0].headers",
        "sent as jobs.callback_header: rename one of the two",
    ),
    (
        {
            "backends": [{**BACKEND, "send_dispatch_header": True}],
            **CALLED,
            "jobs": {"callback_header": "x-source"},
        },
        "invalid_value",
        "jobs.callback_header",
        "the callback_header 'x-source' of 'new' would replace BATCHWRIGHT_DISPATCH_HEADER",
    ),
    ({"backends": [BACKEND], "fallbacks": ["z"]}, "invalid_value", "model", "register it first"),
    ({"backends": [BACKEND], "aliases": ["qwen"]}, "invalid_value", "model", "is a model itself"),
    ({"backends": [BACKEND], "aliases": ["gpt"]}, "invalid_value", "model", "choose another"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a registry file and a secret, shared so that all tests can share an application."""
    folder = tmp_path_factory.mktemp("registry")
    (folder / "gateway").write_text("secret-of-the-gateway")
    (folder / "models.yaml").write_text(FILE)
    return folder


@pytest.fixture
async def api(folder: Path) -> AsyncGenerator[ApiFixture]:
    async with open_api(registry=folder / "models.yaml", secrets_dir=folder, backends=[]) as opened:
        yield opened


async def put(api: ApiFixture, model: str, **fields: object) -> httpx.Response:
    return await api.http.put(f"/admin/models/{model}", json={"backends": [BACKEND], **fields})


async def all_of(api: ApiFixture) -> RegisteredModels:
    return read(await api.http.get("/admin/models"), RegisteredModels)


def of(found: RegisteredModels) -> dict[str, RegisteredModel]:
    return {entry.model: entry for entry in found.data}


def sources(found: RegisteredModels) -> dict[str, str]:
    return {entry.model: entry.source for entry in found.data}


async def test_the_registry_file_is_shown_without_secrets_and_unset_fields(api: ApiFixture) -> None:
    answer = await api.http.get("/admin/models")
    llama, qwen = read(answer, RegisteredModels).data
    assert (llama.model, llama.source, llama.changed_at) == ("llama", "file", None)
    assert [backend.model_dump() for backend in llama.backends] == [
        {"url": "http://one:8000", "weight": 2.0, "model": None}
    ]
    assert (llama.aliases, llama.fallbacks, llama.load_balancing) == (["gpt"], ["qwen"], "least-outstanding")
    assert qwen.backends[0].model == "org/qwen"
    assert "gateway" not in answer.text


async def test_a_model_is_registered_replaced_and_reverted(api: ApiFixture) -> None:
    found = of(read(await put(api, "org/new:7b", aliases=["n"]), RegisteredModels))
    assert (found["org/new:7b"].source, found["org/new:7b"].aliases) == ("change", ["n"])
    assert found["org/new:7b"].changed_at is not None
    replaced = of(read(await put(api, "org%2Fnew:7b"), RegisteredModels))
    assert replaced["org/new:7b"].aliases == []
    back = await api.http.delete("/admin/model-configs/org/new:7b")
    assert sources(read(back, RegisteredModels)) == {"llama": "file", "qwen": "file"}
    again = await api.http.delete("/admin/model-configs/org/new:7b")
    assert read(again, RegisteredModels) == read(back, RegisteredModels)


async def test_a_change_overrides_the_file_until_it_is_reverted(api: ApiFixture) -> None:
    await put(api, "llama")
    assert (changed := of(await all_of(api))["llama"]).source == "change"
    assert changed.backends[0].url == "http://three"
    await api.http.delete("/admin/model-configs/llama")
    assert of(await all_of(api))["llama"].backends[0].url == "http://one:8000"


async def test_a_model_of_the_file_is_removed_and_restored(api: ApiFixture) -> None:
    taken = read(await api.http.delete("/admin/models/llama"), RegisteredModels)
    assert (sources(taken), taken.removed) == ({"qwen": "file"}, ["llama"])
    again = await api.http.delete("/admin/models/llama")
    assert read(again, RegisteredModels) == taken
    gone = await api.http.get("/admin/models/llama")
    assert (gone.status_code, error_of(gone).code) == (404, "model_not_found")
    assert "DELETE /admin/model-configs/llama restores it" in error_of(gone).message
    back = read(await api.http.delete("/admin/model-configs/llama"), RegisteredModels)
    assert (sources(back), back.removed) == ({"llama": "file", "qwen": "file"}, [])


async def test_a_change_is_shown_whole(api: ApiFixture) -> None:
    await put(api, "new", retries={"max_attempts": 3, "initial_backoff": "500ms"})
    shown = read(await api.http.get("/admin/models/new"), ModelSettingsObject)
    assert shown.change == {
        "backends": [{"url": "http://three"}],
        "retries": {"max_attempts": 3, "initial_backoff": 0.5},
    }


async def test_listed_models_are_shown_removed_and_used_as_fallbacks() -> None:
    async with open_api(backends=["http://a/v1", "http://b"]) as api:
        models = api.database.models
        await models.replace_models("http://a", ["m", "n"], START)
        await models.replace_models("http://b", ["m"], START)
        found = of(await all_of(api))
        assert [backend.url for backend in found["m"].backends] == ["http://a", "http://b"]
        assert found["m"].source == "listing"
        assert (await put(api, "new", fallbacks=["m"])).status_code == 200
        refused = await put(api, "other", aliases=["n"])
        assert (refused.status_code, error_of(refused).param) == (400, "aliases")
        assert "'n' is a model itself" in error_of(refused).message
        assert (await api.http.delete("/admin/models/m")).status_code == 400
        assert "m" in of(await all_of(api))
        taken = read(await api.http.delete("/admin/models/n"), RegisteredModels)
        assert sources(taken) == {"m": "listing", "new": "change"}


@pytest.mark.parametrize(("body", "code", "param", "message"), WRONG)
async def test_an_invalid_registration_is_refused_and_named(
    api: ApiFixture, body: dict[str, object], code: str, param: str, message: str
) -> None:
    refused = await api.http.put("/admin/models/new", json=body)
    error = error_of(refused)
    assert (refused.status_code, error.code, error.param) == (400, code, param)
    assert message in error.message
    assert sources(await all_of(api)) == {"llama": "file", "qwen": "file"}


@pytest.mark.parametrize("depth", [900, 1_000, 10_000])
async def test_a_body_that_is_nested_too_deeply_is_refused(api: ApiFixture, depth: int) -> None:
    body = b'{"a":' * depth + b"1" + b"}" * depth
    refused = await api.http.put("/admin/models/new", content=body)
    assert (refused.status_code, error_of(refused).type) == (400, "invalid_request_error")


@pytest.mark.parametrize("url", ["http://one:9000", "https://one"])
async def test_a_key_may_be_named_for_the_host_that_the_file_sends_it_to(api: ApiFixture, url: str) -> None:
    used = {"url": url, "api_key_name": "gateway"}
    answer = await api.http.put("/admin/models/new", json={"backends": [used]})
    assert "new" in of(read(answer, RegisteredModels))
    assert "secret" not in answer.text


async def test_a_model_used_as_a_fallback_cannot_be_removed(api: ApiFixture) -> None:
    refused = await api.http.delete("/admin/models/qwen")
    assert (refused.status_code, error_of(refused).code) == (400, "invalid_value")
    assert "the fallback 'qwen' of 'llama' is not a model" in error_of(refused).message
    await put(api, "new")
    await put(api, "other", fallbacks=["new"])
    assert (await api.http.delete("/admin/model-configs/new")).status_code == 400


@pytest.mark.parametrize(("model", "status"), [("nobody", 404), ("gpt", 404), ("", 400), ("a" * 257, 400)])
async def test_an_unknown_model_cannot_be_removed(api: ApiFixture, model: str, status: int) -> None:
    refused = await api.http.delete(f"/admin/models/{model}")
    assert (refused.status_code, error_of(refused).param) == (status, "model")


async def test_an_unavailable_database_is_a_503(api: ApiFixture) -> None:
    api.database.rows.failing = DatabaseUnavailable("away")
    assert (await api.http.get("/admin/models")).status_code == 503
    assert (await put(api, "new")).status_code == 503
