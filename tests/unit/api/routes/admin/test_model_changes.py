"""Partial run-time changes of models, the models' versions, and their effective settings with sources."""

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from batchwright.api.schemas.model_registry import ModelConfigObject
from batchwright.contracts.api_objects.operator import ModelSettingsObject
from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.database.records import ModelChange
from batchwright.rules.backends.registry_changes import ModelSettings
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.tables.models.models import MemoryModelChanges
from tests.integration.database.rows import START

FILE = """
models:
  llama:
    backends:
      - {url: "http://one:8000/v1", weight: 2, api_key_name: gateway, headers: {X-Team: blue-secret}}
      - {url: "https://two", model: org/llama, api_key_file: %s}
    aliases: [gpt]
    fallbacks: [qwen]
    retries: {max_attempts: 7, initial_backoff: 3}
    limits: {in_flight: 20}
  qwen:
    backends: [{url: "http://two"}]
  voice:
    backends: [{url: "http://three"}]
    kind: poll
    jobs: {poll_endpoint_template: "/status/{id}", poll_interval: 9}
"""
LLAMA = "/admin/models/llama"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    (folder / "gateway").write_text("secret-of-the-gateway")
    (folder / "elsewhere").write_text("secret-of-elsewhere")
    (folder / "models.yaml").write_text(FILE % (folder / "elsewhere"))
    return folder


@pytest.fixture
async def api(folder: Path) -> AsyncGenerator[ApiFixture]:
    models = {"llama": {"in_flight": 3, "inputs_per_request": 16}, "qwen": {"in_flight": 5}}
    async with open_api(
        registry=folder / "models.yaml",
        secrets_dir=folder,
        backends=[],
        models=models,
        max_backoff_seconds=44,
    ) as opened:
        yield opened


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


async def test_the_effective_settings_are_shown_with_their_origin(api: ApiFixture) -> None:
    found = await shown(api)
    assert (found.source, found.version, found.change) == ("file", 0, None)
    assert values(found)["limits.in_flight"] == 20
    assert values(found)["limits.inputs_per_request"] == 16
    assert values(found)["limits.capacity_fraction"] == 1.0
    assert values(found)["limits.input_tokens_per_request"] == 32_000
    assert values(found)["retries.max_backoff"] == 44
    assert values(found)["aliases"] == ["gpt"]
    assert origins(found) == {
        "aliases": "file",
        "fallbacks": "file",
        "load_balancing": "default",
        "kind": "default",
        "retries.max_attempts": "file",
        "retries.initial_backoff": "file",
        "retries.max_backoff": "environment",
        "retries.give_up_after": "default",
        "limits.in_flight": "file",
        "limits.capacity_fraction": "default",
        "limits.inputs_per_request": "environment",
        "limits.input_tokens_per_request": "default",
        "limits.requests_per_minute": "default",
        "limits.tokens_per_minute": "default",
    }
    one, two = found.backends
    assert (one.url, one.origin) == ("http://one:8000", "file")
    assert (one.settings["weight"].value, one.settings["weight"].origin) == (2.0, "file")
    assert (one.settings["request_timeout"].value, one.settings["request_timeout"].origin) == (600, "default")
    assert one.settings["headers"].value == ["X-Team"]
    assert (one.settings["has_api_key"].value, two.settings["has_api_key"].value) == (True, True)
    qwen = await shown(api, "qwen")
    assert (values(qwen)["limits.in_flight"], origins(qwen)["limits.in_flight"]) == (5, "environment")
    assert qwen.backends[0].settings["has_api_key"].value is False


async def test_no_secret_is_shown(api: ApiFixture) -> None:
    headers = {"headers": {"X-Team": "red-secret"}, "batch_headers": {"X-Lane": "secret"}}
    await patch(api, "llama", {"backends": [{"url": "http://one:8000", **headers}]})
    for path in ("/admin/models", LLAMA, "/admin/model-configs/llama"):
        assert "secret" not in (await api.http.get(path)).text
    change = (await shown(api)).change
    assert change is not None
    hidden = {"headers": {"X-Team": "(hidden)"}, "batch_headers": {"X-Lane": "(hidden)"}}
    assert change["backends"] == [{"url": "http://one:8000", **hidden}]


async def test_a_change_of_one_setting_keeps_all_others(api: ApiFixture) -> None:
    before = await shown(api)
    answer = await patch(api, "llama", {"limits": {"in_flight": 8}})
    after = read(answer, ModelSettingsObject)
    assert answer.headers["etag"] == f'"{after.version}"'
    assert values(after) == {**values(before), "limits.in_flight": 8}
    assert origins(after) == {**origins(before), "limits.in_flight": "change"}
    assert after.backends == before.backends
    assert (after.source, after.change) == ("change", {"limits": {"in_flight": 8}})
    more = read(await patch(api, "llama", {"limits": {"capacity_fraction": 0.5}}), ModelSettingsObject)
    assert more.change == {"limits": {"in_flight": 8, "capacity_fraction": 0.5}}


async def test_a_backend_is_added_and_the_others_stay(api: ApiFixture) -> None:
    backends = [{"url": "http://one:8000"}, {"url": "https://two/v1"}, {"url": "http://new", "weight": 3}]
    found = read(await patch(api, "llama", {"backends": backends}), ModelSettingsObject)
    assert urls(found) == ["http://one:8000", "https://two", "http://new"]
    assert [backend.origin for backend in found.backends] == ["file", "file", "change"]
    assert found.backends[0].settings["weight"].value == 2.0
    assert found.backends[0].settings["api_key_name"].value == "gateway"
    assert found.backends[1].settings["model"].value == "org/llama"
    assert found.backends[1].settings["has_api_key"].value is True
    assert values(found)["retries.max_attempts"] == 7
    # Another change keeps the weight of the first one. Backends that are no longer listed are removed.
    backends = [{"url": "http://new"}, {"url": "http://one:8000", "weight": 5}]
    found = read(await patch(api, "llama", {"backends": backends}), ModelSettingsObject)
    assert [(backend.url, backend.settings["weight"].value) for backend in found.backends] == [
        ("http://new", 3.0),
        ("http://one:8000", 5.0),
    ]
    assert found.backends[1].settings["weight"].origin == "change"
    assert found.backends[1].settings["api_key_name"].origin == "file"


async def test_the_priority_of_a_backend_is_changed_and_taken_back(api: ApiFixture) -> None:
    def shown_priority(answer: httpx.Response) -> tuple[object, str]:
        setting = read(answer, ModelSettingsObject).backends[0].settings["priority"]
        return setting.value, setting.origin

    others = [{"url": "https://two"}]
    changed = await patch(api, "llama", {"backends": [{"url": "http://one:8000", "priority": 0}, *others]})
    assert shown_priority(changed) == (0, "change")
    back = await patch(api, "llama", {"backends": [{"url": "http://one:8000", "priority": None}, *others]})
    assert shown_priority(back) == (None, "default")


async def test_null_reverts_a_change(api: ApiFixture) -> None:
    await patch(
        api, "llama", {"limits": {"in_flight": 8}, "aliases": ["new"], "backends": [{"url": "http://x"}]}
    )
    found = read(
        await patch(api, "llama", {"limits": {"in_flight": None}, "backends": None}), ModelSettingsObject
    )
    assert (values(found)["limits.in_flight"], values(found)["aliases"]) == (20, ["new"])
    assert urls(found) == ["http://one:8000", "https://two"]
    found = read(await patch(api, "llama", {"aliases": None}), ModelSettingsObject)
    assert (found.source, found.version, found.change) == ("file", 0, None)


async def test_a_model_that_was_registered_as_a_whole_is_changed_in_part(api: ApiFixture) -> None:
    config = {"backends": [{"url": "http://x"}], "retries": {"max_attempts": 3, "give_up_after": None}}
    await api.http.put("/admin/models/new", json=config)
    found = read(await patch(api, "new", {"limits": {"in_flight": 8}}), ModelSettingsObject)
    assert (values(found)["retries.max_attempts"], values(found)["limits.in_flight"]) == (3, 8)
    assert origins(found)["retries.max_attempts"] == "change"
    found = read(await patch(api, "new", {"retries": None}), ModelSettingsObject)
    assert (values(found)["retries.max_attempts"], origins(found)["retries.max_attempts"]) == (5, "default")


async def test_a_listed_model_is_changed_and_its_backends_stay_the_listings() -> None:
    async with open_api(backends=["http://a", "http://b"], backend_api_key="secret-key") as api:
        models = api.database.models
        await models.replace_models("http://a", ["m"], START)
        found = read(await patch(api, "m", {"limits": {"inputs_per_request": 8}}), ModelSettingsObject)
        assert (urls(found), values(found)["limits.inputs_per_request"]) == (["http://a"], 8)
        assert found.backends[0].origin == "listing"
        assert found.backends[0].settings["has_api_key"].model_dump() == {
            "value": True,
            "origin": "environment",
        }
        await models.replace_models("http://b", ["m"], START)
        assert urls(await shown(api, "m")) == ["http://a", "http://b"]
        weighed: dict[str, object] = {"backends": [{"url": "http://a", "weight": 2}, {"url": "http://c"}]}
        found = read(await patch(api, "m", weighed), ModelSettingsObject)
        assert [backend.settings["has_api_key"].value for backend in found.backends] == [True, False]
        named = await patch(api, "m", {"backends": [{"url": "http://a", "model": "x"}]})
        assert error_of(named).param == "backends[0].model"
        refused = await patch(api, "m", {"backends": [{"url": "http://a", "tls_insecure_skip_verify": True}]})
        assert error_of(refused).param == "backends[0].tls_insecure_skip_verify"
        assert "secret-key" not in (await api.http.get("/admin/models/m")).text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"limits": {"in_flight": 0}}, "limits.in_flight"),
        ({"limits": {"requests_per_minute": 0}}, "limits.requests_per_minute"),
        ({"limits": {"tokens_per_minute": -1}}, "limits.tokens_per_minute"),
        ({"limits": {"tokens_per_minute": 1.5}}, "limits.tokens_per_minute"),
        ({"limits": {"requests_per_minute": 2**53}}, "limits.requests_per_minute"),
        ({"limits": {"capacity_fraction": 1.5}}, "limits.capacity_fraction"),
        ({"limits": {"x": 1}}, "limits.x"),
        ({"limits": 5}, "limits"),
        ({"backends": [{"weight": 1}]}, "backends[0].url"),
        ({"backends": [{"url": "http://x", "priority": 1.5}]}, "backends[0].priority"),
        ({"backends": [{"url": "http://one:8000", "weight": 0}]}, "backends[0].weight"),
        ({"backends": ["http://one"]}, "backends[0]"),
        ({"backends": []}, "backends"),
        ({"backends": [{"url": "http://x"}, {"url": "http://x/v1"}]}, "backends"),
        ({"aliases": ["qwen"]}, "model"),
        ({"fallbacks": ["none"]}, "model"),
        ({"x": 1}, "x"),
    ],
)
async def test_an_invalid_change_is_named_and_changes_nothing(
    api: ApiFixture, body: dict[str, object], param: str
) -> None:
    before = await shown(api)
    refused = await patch(api, "llama", body)
    assert (refused.status_code, error_of(refused).param) == (400, param)
    assert await shown(api) == before


@pytest.mark.parametrize("method", ["PATCH", "GET"])
async def test_an_unknown_model_is_not_found(api: ApiFixture, method: str) -> None:
    body = {"limits": {"in_flight": 8}} if method == "PATCH" else None
    for model, message in (
        ("nobody", "does not exist"),
        ("qwen2", "does not exist"),
        ("voice", "was removed"),
    ):
        await api.http.delete("/admin/models/voice")
        answer = await api.http.request(method, f"/admin/models/{model}", json=body)
        assert (answer.status_code, error_of(answer).code) == (404, "model_not_found")
        assert message in error_of(answer).message


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


async def test_request_settings_of_a_model_are_read_overridden_and_reverted(api: ApiFixture) -> None:
    path = "/admin/model-configs/llama"
    before = read(await api.http.get(path), ModelConfigObject)
    assert before.model_dump() == {
        "model": "llama",
        "model_type": "sync",
        "poll_endpoint_template": None,
        "id_field": None,
        "poll_interval": 2.0,
        "max_poll_time": 600.0,
        "max_retries": 6,
        "overridden": [],
        "changed_at": None,
        "version": 0,
    }
    await patch(api, "llama", {"limits": {"in_flight": 8}})
    body = {
        "model_type": "async",
        "poll_endpoint_template": "/status/{id}",
        "poll_interval": 5.0,
        "max_poll_time": 1800,
        "max_retries": 3,
    }
    put = read(await api.http.put(path, json=body), ModelConfigObject)
    assert {name: getattr(put, name) for name in body} == body
    assert put.overridden == [*body]
    found = await shown(api)
    assert (values(found)["kind"], values(found)["retries.max_attempts"]) == ("poll", 4)
    assert values(found)["limits.in_flight"] == 8
    assert urls(found) == ["http://one:8000", "https://two"]
    put = read(await api.http.put(path, json={"max_retries": 0}), ModelConfigObject)
    assert (put.model_type, put.max_retries, put.overridden) == ("sync", 0, ["max_retries"])
    await api.http.delete(path)
    assert read(await api.http.get(path), ModelConfigObject) == before


async def test_an_override_keeps_the_job_settings_of_the_file(api: ApiFixture) -> None:
    path = "/admin/model-configs/voice"
    put = read(await api.http.put(path, json={"model_type": "async", "id_field": "job"}), ModelConfigObject)
    assert (put.poll_endpoint_template, put.poll_interval, put.id_field) == ("/status/{id}", 9.0, "job")
    assert put.overridden == ["model_type", "id_field"]
    put = read(await api.http.put(path, json={"model_type": "sync"}), ModelConfigObject)
    assert (put.model_type, put.poll_endpoint_template) == ("sync", None)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model_type": "poll"}, "model_type"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": 1.5}, "max_retries"),
        ({"max_retries": True}, "max_retries"),
        ({"poll_interval": 0}, "jobs.poll_interval"),
        ({"poll_endpoint_template": "/status"}, "jobs.poll_endpoint_template"),
        ({"timeout": 3}, "timeout"),
    ],
)
async def test_an_invalid_override_is_named(api: ApiFixture, body: dict[str, object], param: str) -> None:
    refused = await api.http.put("/admin/model-configs/voice", json=body)
    assert (refused.status_code, error_of(refused).param) == (400, param)


async def test_a_change_that_no_longer_fits_the_file_is_ignored_and_reported(api: ApiFixture) -> None:
    old: ModelSettings = {"jobs": {"poll_interval": 3}}  # from a registry file with the kind poll
    changes = api.database.model_changes
    await changes.patch("llama", lambda present: old, START, lambda rows: None)
    found = await shown(api)
    assert (values(found)["retries.max_attempts"], found.source) == (7, "change")
    [problem] = found.problems
    assert "no longer fits the file or the listing" in problem
    assert "kind: poll or kind: callback" in problem
    reverted = read(await patch(api, "llama", {"jobs": None}), ModelSettingsObject)
    assert (reverted.source, reverted.problems) == ("file", [])


async def test_a_registration_that_may_no_longer_use_a_key_sends_none(api: ApiFixture) -> None:
    backend = BackendConfig(url="http://moved", api_key_name="gateway", weight=3)
    changes = api.database.model_changes
    await changes.put("old", ModelConfig(backends=[backend]), START, lambda rows: None)
    found = await shown(api, "old")
    [backend] = found.backends
    assert (backend.settings["has_api_key"].value, backend.settings["weight"].value) == (False, 3.0)
    assert found.problems[0].endswith("until then no key or certificate is sent there")


async def test_prices_are_set_changed_and_shown_with_their_origin(api: ApiFixture) -> None:
    await patch(api, "llama", {"prices": {"currency": "EUR", "input": 0.15, "output": "0.60"}})
    found = read(await patch(api, "llama", {"prices": {"input": 2}}), ModelSettingsObject)
    assert values(found) | {"prices.currency": "EUR", "prices.input": "2", "prices.output": "0.6"} == values(
        found
    )
    assert (origins(found)["prices.input"], origins(found)["prices.request"]) == ("change", "default")
    undone = read(await patch(api, "llama", {"prices": None}), ModelSettingsObject)
    assert "prices.input" not in values(undone)


@pytest.mark.parametrize(
    ("price", "shown_price"), [(-1, "-1"), ("cheap", "'cheap'"), (True, "True"), (None, None)]
)
async def test_a_price_that_is_negative_or_no_number_is_rejected(
    api: ApiFixture, price: object, shown_price: str | None
) -> None:
    answer = await patch(api, "llama", {"prices": {"input": price}})
    if shown_price is None:  # null undoes an earlier change
        assert answer.status_code == 200
        return
    assert answer.status_code == 400
    assert error_of(answer).param == "prices.input"
    assert error_of(answer).message.endswith(f"with at most 6 decimal places; it is {shown_price}.")


async def test_all_models_have_one_currency(api: ApiFixture) -> None:
    await patch(api, "llama", {"prices": {"currency": "EUR", "input": 1}})
    answer = await patch(api, "qwen", {"prices": {"currency": "USD", "input": 1}})
    assert answer.status_code == 400
    assert error_of(answer).param == "prices.currency"
    assert "the prices of 'llama' are in EUR, and those of 'qwen' are in USD" in error_of(answer).message


async def test_all_models_of_a_gateway_have_its_currency(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("gateway: {url: 'http://one', prices: {currency: EUR, input: 1}}")
    async with open_api(registry=file, backends=[]) as api:
        answer = await patch(api, "any", {"prices": {"currency": "USD", "input": 2}})
        assert answer.status_code == 400
        assert (
            "the prices of 'any' are in USD, and those of 'the gateway' are in EUR"
            in error_of(answer).message
        )
        found = read(await patch(api, "any", {"prices": {"input": 2}}), ModelSettingsObject)
    assert (values(found)["prices.currency"], values(found)["prices.input"]) == ("EUR", "2")
    assert (origins(found)["prices.currency"], origins(found)["prices.input"]) == ("file", "change")
