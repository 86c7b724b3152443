"""Changes of some settings of a model at run time, and the settings in effect with their sources (file or
change).
"""

import httpx
import pytest

from batchwright.api.schemas.model_registry import ModelConfigObject
from batchwright.contracts.api_objects.operator import ModelSettingsObject
from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.rules.backends.registry_changes import ModelSettings
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.integration.database.rows import START
from tests.unit.api.routes.admin.models.model_settings import LLAMA, origins, patch, shown, urls, values


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
