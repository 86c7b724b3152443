"""/admin/models and /admin/model-configs: what is registered, its change, and what is refused."""

from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from api.registry import ModelChangeObject, RegisteredModel, RegisteredModels
from batchwright.database.errors import DatabaseUnavailable
from tests.fakes.api import House, error_of, open_house, read
from tests.integration.rows import START

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
    ({"backends": [{"url": "http://x:99999"}]}, "invalid_value", "backends[0].url", "1 to 65535"),
    ({"backends": [{"url": "http://[::x"}]}, "invalid_value", "backends[0].url", "with a host"),
    ({"backends": [{"url": "http://1.2.3.999"}]}, "invalid_value", "backends[0].url", "is no address"),
    ({"backends": [{**BACKEND, "model": "\0"}]}, "invalid_value", "backends[0].model", "pattern"),
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
        "only what the file uses may be named (gateway)",
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
        {"backends": [BACKEND, {**BACKEND, "headers": {"traceparent": "k"}}]},
        "invalid_value",
        "backends[1].headers",
        "the header 'traceparent' of the backend http://three of 'new' would stand for the trace",
    ),
    (
        {"backends": [{**BACKEND, "headers": {"Content-Length": "1"}}]},
        "invalid_value",
        "backends[0].headers",
        "'Content-Length' is made by Batchwright itself",
    ),
    (
        {"backends": [{**BACKEND, "headers": {"x-hook": "k"}}], **CALLED},
        "invalid_value",
        "backends[0].headers",
        "sent as jobs.callback_header: rename one of the two",
    ),
    (
        {"backends": [{**BACKEND, "dispatched": True}], **CALLED, "jobs": {"callback_header": "x-source"}},
        "invalid_value",
        "jobs.callback_header",
        "the callback_header 'x-source' of 'new' would stand for BATCHWRIGHT_DISPATCH_HEADER",
    ),
    ({"backends": [BACKEND], "fallbacks": ["z"]}, "invalid_value", "model", "register it first"),
    ({"backends": [BACKEND], "aliases": ["qwen"]}, "invalid_value", "model", "is a model itself"),
    ({"backends": [BACKEND], "aliases": ["gpt"]}, "invalid_value", "model", "choose another"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the registry's file and a secret; one for all, so that one API serves all."""
    folder = tmp_path_factory.mktemp("registry")
    (folder / "gateway").write_text("secret-of-the-gateway")
    (folder / "models.yaml").write_text(FILE)
    return folder


@pytest.fixture
async def house(folder: Path) -> AsyncGenerator[House]:
    async with open_house(registry=folder / "models.yaml", secrets_dir=folder, backends=[]) as opened:
        yield opened


async def put(house: House, model: str, **fields: object) -> httpx.Response:
    return await house.http.put(f"/admin/models/{model}", json={"backends": [BACKEND], **fields})


async def all_of(house: House) -> RegisteredModels:
    return read(await house.http.get("/admin/models"), RegisteredModels)


def of(found: RegisteredModels) -> dict[str, RegisteredModel]:
    return {entry.model: entry for entry in found.data}


def sources(found: RegisteredModels) -> dict[str, str]:
    return {entry.model: entry.source for entry in found.data}


async def test_the_file_is_shown_without_what_is_not_told(house: House) -> None:
    answer = await house.http.get("/admin/models")
    llama, qwen = read(answer, RegisteredModels).data
    assert (llama.model, llama.source, llama.changed_at) == ("llama", "file", None)
    assert [backend.model_dump() for backend in llama.backends] == [
        {"url": "http://one:8000", "weight": 2.0, "model": None}
    ]
    assert (llama.aliases, llama.fallbacks, llama.choice) == (["gpt"], ["qwen"], "least-outstanding")
    assert qwen.backends[0].model == "org/qwen"
    assert "gateway" not in answer.text


async def test_a_model_is_registered_replaced_and_reverted(house: House) -> None:
    found = of(read(await put(house, "org/new:7b", aliases=["n"]), RegisteredModels))
    assert (found["org/new:7b"].source, found["org/new:7b"].aliases) == ("change", ["n"])
    assert found["org/new:7b"].changed_at is not None
    replaced = of(read(await put(house, "org%2Fnew:7b"), RegisteredModels))
    assert replaced["org/new:7b"].aliases == []
    back = await house.http.delete("/admin/model-configs/org/new:7b")
    assert sources(read(back, RegisteredModels)) == {"llama": "file", "qwen": "file"}
    again = await house.http.delete("/admin/model-configs/org/new:7b")
    assert read(again, RegisteredModels) == read(back, RegisteredModels)


async def test_a_change_stands_before_the_file_until_it_is_reverted(house: House) -> None:
    await put(house, "llama")
    assert (changed := of(await all_of(house))["llama"]).source == "change"
    assert changed.backends[0].url == "http://three"
    await house.http.delete("/admin/model-configs/llama")
    assert of(await all_of(house))["llama"].backends[0].url == "http://one:8000"


async def test_a_model_of_the_file_is_taken_away_and_comes_back(house: House) -> None:
    taken = read(await house.http.delete("/admin/models/llama"), RegisteredModels)
    assert (sources(taken), taken.removed) == ({"qwen": "file"}, ["llama"])
    again = await house.http.delete("/admin/models/llama")
    assert read(again, RegisteredModels) == taken
    change = read(await house.http.get("/admin/model-configs/llama"), ModelChangeObject)
    assert (change.model, change.config) == ("llama", None)
    back = read(await house.http.delete("/admin/model-configs/llama"), RegisteredModels)
    assert (sources(back), back.removed) == ({"llama": "file", "qwen": "file"}, [])


async def test_a_change_is_shown_whole(house: House) -> None:
    await put(house, "new", retries={"max_attempts": 3, "initial_backoff": "500ms"})
    change = read(await house.http.get("/admin/model-configs/new"), ModelChangeObject)
    assert change.config is not None
    assert change.config.retries.max_attempts == 3
    assert change.config.retries.initial_backoff == 0.5


async def test_what_backends_list_is_shown_taken_away_and_fallen_back_on() -> None:
    async with open_house(backends=["http://a/v1", "http://b"]) as house:
        models = house.database.models
        await models.note("http://a", ["m", "n"], START)
        await models.note("http://b", ["m"], START)
        found = of(await all_of(house))
        assert [backend.url for backend in found["m"].backends] == ["http://a", "http://b"]
        assert found["m"].source == "listing"
        assert (await put(house, "new", fallbacks=["m"])).status_code == 200
        refused = await put(house, "other", aliases=["n"])
        assert (refused.status_code, error_of(refused).param) == (400, "aliases")
        assert "'n' is a model itself" in error_of(refused).message
        assert (await house.http.delete("/admin/models/m")).status_code == 400
        assert "m" in of(await all_of(house))
        taken = read(await house.http.delete("/admin/models/n"), RegisteredModels)
        assert sources(taken) == {"m": "listing", "new": "change"}


@pytest.mark.parametrize(("body", "code", "param", "said"), WRONG)
async def test_what_is_wrong_is_named(
    house: House, body: dict[str, object], code: str, param: str, said: str
) -> None:
    refused = await house.http.put("/admin/models/new", json=body)
    error = error_of(refused)
    assert (refused.status_code, error.code, error.param) == (400, code, param)
    assert said in error.message
    assert sources(await all_of(house)) == {"llama": "file", "qwen": "file"}


@pytest.mark.parametrize("url", ["http://one:9000", "https://one"])
async def test_a_key_may_be_named_for_the_host_that_the_file_sends_it_to(house: House, url: str) -> None:
    used = {"url": url, "api_key_name": "gateway"}
    answer = await house.http.put("/admin/models/new", json={"backends": [used]})
    assert "new" in of(read(answer, RegisteredModels))
    assert "secret" not in answer.text


async def test_a_model_that_another_falls_back_on_stays(house: House) -> None:
    refused = await house.http.delete("/admin/models/qwen")
    assert (refused.status_code, error_of(refused).code) == (400, "invalid_value")
    assert "the fallback 'qwen' of 'llama' is no model here" in error_of(refused).message
    await put(house, "new")
    await put(house, "other", fallbacks=["new"])
    assert (await house.http.delete("/admin/model-configs/new")).status_code == 400


@pytest.mark.parametrize(("model", "status"), [("nobody", 404), ("gpt", 404), ("", 400), ("a" * 257, 400)])
async def test_a_model_that_is_none_cannot_be_taken_away(house: House, model: str, status: int) -> None:
    refused = await house.http.delete(f"/admin/models/{model}")
    assert (refused.status_code, error_of(refused).param) == (status, "model")


@pytest.mark.parametrize("model", ["llama", "nobody"])
async def test_what_was_not_changed_has_no_change(house: House, model: str) -> None:
    refused = await house.http.get(f"/admin/model-configs/{model}")
    assert (refused.status_code, error_of(refused).code) == (404, "model_not_found")


async def test_a_database_that_is_away_is_a_503(house: House) -> None:
    house.database.rows.failing = DatabaseUnavailable("away")
    assert (await house.http.get("/admin/models")).status_code == 503
    assert (await put(house, "new")).status_code == 503
