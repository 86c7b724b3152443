"""Requests with API keys: valid and invalid keys, scopes, errors that look alike, logs and metrics."""

import logging
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import httpx
import openai
import pytest

from batchwright.contracts.api_objects.quotas import LimitsObject
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.tenants.quota_records import DailyUsage
from batchwright.rules.tenants.api_keys import ApiKey, new_key
from batchwright.rules.tenants.scopes import Scope
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.api_keys import create_key
from tests.fakes.token_usage import publish_usage


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    # Fixtures with equal settings share an application, which would remember the failures of other tests.
    async with open_api(auth="api_key", auth_failures_per_minute=0) as api:
        yield api


def bearer(key: ApiKey | str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.text if isinstance(key, ApiKey) else key}"}


async def respond(
    api: ApiFixture, key: ApiKey | str, method: str = "GET", path: str = "/v1/files"
) -> httpx.Response:
    return await api.http.request(method, path, headers=bearer(key))


async def test_the_official_client_authenticates_with_its_key_and_acts_for_its_tenant(
    api: ApiFixture,
) -> None:
    blue, red = await create_key(api.database, "blue"), await create_key(api.database, "red")
    client = api.openai.with_options(api_key=blue.text)
    file = await client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    assert [each.id async for each in client.files.list()] == [file.id]
    assert [each.id async for each in client.with_options(api_key=red.text).files.list()] == []
    assert {tenant for tenant, _ in api.database.rows.files} == {"blue"}


async def test_a_batch_has_the_id_of_its_key_and_limits_show_what_is_left_of_its_budget(
    api: ApiFixture,
) -> None:
    key = await create_key(api.database, "blue")
    body = {"input_file_id": "file-0", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    await api.http.post("/v1/batches", json=body, headers=bearer(key))
    [order] = api.temporal.orders.values()
    [row] = await api.database.api_keys.all("blue")
    assert order.policy.caller.key_id == row.id
    await api.database.api_keys.limit(row.id, tokens_per_day=100, cost_per_day="2")
    spent = (DailyUsage("blue", row.id, 30, 15 * 10**11), DailyUsage("blue", "key_other", 50, 10**12))
    await publish_usage(api.database.quotas, "w", *spent)
    limits = read(await respond(api, key, path="/v1/x/limits"), LimitsObject)
    tokens, cost = [(one.limit, one.used, one.left) for one in limits.key]
    assert (tokens, cost) == ((100, 30, 70), ("2", "1.5", "0.5"))


async def test_without_a_key_the_official_client_raises_an_authentication_error(api: ApiFixture) -> None:
    answer = await api.http.get("/v1/files")
    assert (answer.status_code, error_of(answer).code) == (401, "invalid_api_key")
    assert error_of(answer).message.startswith("You didn't provide an API key.")
    assert answer.headers["www-authenticate"] == "Bearer"
    with pytest.raises(openai.AuthenticationError):
        await api.openai.with_options(api_key="sk-other").files.list()


async def test_a_path_with_a_line_break_at_its_end_reaches_no_route_with_a_lesser_scope(
    api: ApiFixture,
) -> None:
    key = await create_key(api.database, "blue", scopes=[Scope.READ])
    assert (await respond(api, key, path="/v1/stats")).status_code == 403
    answer = await respond(api, key, path="/v1/stats%0A")
    assert (answer.status_code, error_of(answer).message) == (404, "Invalid URL (GET /v1/stats%0A)")


async def test_all_invalid_keys_get_the_same_response_at_the_same_cost(api: ApiFixture) -> None:
    now = datetime.now(UTC)
    right = await create_key(api.database, "blue")
    shut = {
        "unknown": new_key(),
        "wrong secret": ApiKey(right.prefix, new_key().secret),
        "expired": await create_key(api.database, "blue", expires_at=now - timedelta(seconds=1)),
        "revoked": await create_key(api.database, "blue", revoked_at=now - timedelta(days=1)),
        "of a disabled tenant": await create_key(api.database, "gone"),
    }
    await api.database.tenants.disable("gone", now)
    await respond(api, right)  # cached now, which must not be visible
    answers: dict[str, tuple[int, str, dict[str, str], int]] = {}
    for name, key in shut.items():
        before = api.database.rows.key_lookups
        answer = await respond(api, key)
        headers = {name: value for name, value in answer.headers.items() if name != "x-request-id"}
        answers[name] = (
            answer.status_code,
            answer.text,
            headers,
            api.database.rows.key_lookups - before,
        )
    first = answers["unknown"]
    assert (first[0], first[3]) == (401, 1)
    assert {name for name, answer in answers.items() if answer != first} == set()
    assert (await respond(api, right)).status_code == 200


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic {}", "{}", "Bearer {} x", "Bearer {},{}", "Bearer bw_x_y", "bearer\t{}"],
)
async def test_an_authorization_header_that_is_not_one_bearer_key_is_refused(
    api: ApiFixture, header: str
) -> None:
    key = await create_key(api.database, "blue")
    answer = await api.http.get("/v1/files", headers={"Authorization": header.replace("{}", key.text)})
    assert (answer.status_code, error_of(answer).code) == (401, "invalid_api_key")


async def test_the_official_azure_client_authenticates_with_its_header(api: ApiFixture) -> None:
    key = await create_key(api.database, "blue")
    client = openai.AsyncAzureOpenAI(
        base_url="http://api/v1",
        api_key=key.text,
        api_version="2025-04-01-preview",
        max_retries=0,
        http_client=api.http,  # pyright: ignore[reportArgumentType] - it takes httpx too, its types do not
    )
    file = await client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    assert [each.id async for each in client.files.list()] == [file.id]
    assert {tenant for tenant, _ in api.database.rows.files} == {"blue"}


@pytest.mark.parametrize(
    ("authorization", "azures", "status"),
    [
        ("", ["{}"], 200),
        ("Bearer {}", ["{}"], 200),
        ("Bearer none", ["{}"], 200),
        ("Basic dTpw", ["{}"], 200),
        ("Bearer {}", ["none"], 200),
        ("", ["Bearer {}"], 401),
        ("", ["none"], 401),
        ("", [""], 401),
        ("Bearer {}", ["{other}"], 401),
        ("", ["{}", "{other}"], 401),
    ],
)
async def test_the_azure_header_is_accepted_like_a_bearer_key_and_two_keys_are_refused(
    api: ApiFixture, authorization: str, azures: list[str], status: int
) -> None:
    key, other = await create_key(api.database, "blue"), await create_key(api.database, "red")
    sent = [("Authorization", authorization)] if authorization else []
    sent += [("api-key", azure) for azure in azures]
    headers = [(name, value.replace("{}", key.text).replace("{other}", other.text)) for name, value in sent]
    for path in ("/v1/files", "/metrics"):
        assert (await api.http.get(path, headers=headers)).status_code == status


async def test_two_keys_in_a_request_are_refused(api: ApiFixture) -> None:
    keys = [await create_key(api.database, tenant) for tenant in ("blue", "red")]
    headers = [("Authorization", f"Bearer {key.text}") for key in keys]
    assert (await api.http.get("/v1/files", headers=headers)).status_code == 401


async def test_the_word_bearer_is_case_insensitive(api: ApiFixture) -> None:
    key = await create_key(api.database, "blue")
    for word in ("bearer", "BEARER", "Bearer "):
        answer = await api.http.get("/v1/files", headers={"Authorization": f"{word} {key.text}"})
        assert answer.status_code == 200


async def test_a_missing_scope_is_named(api: ApiFixture) -> None:
    key = await create_key(api.database, "blue", scopes=[Scope.READ])
    answer = await respond(api, key, "DELETE", "/v1/files/file-x")
    assert (answer.status_code, error_of(answer).code) == (403, "missing_scope")
    assert "'write'" in error_of(answer).message
    with pytest.raises(openai.PermissionDeniedError):
        await api.openai.with_options(api_key=key.text).batches.cancel("batch_x")


async def test_naming_another_tenant_than_that_of_the_key_is_refused(api: ApiFixture) -> None:
    key = await create_key(api.database, "blue")
    own = await api.http.get("/v1/files", headers={**bearer(key), "X-Tenant": "blue"})
    other = await api.http.get("/v1/files", headers={**bearer(key), "X-Tenant": "red"})
    assert own.status_code == 200
    assert (other.status_code, error_of(other).code) == (403, "tenant_mismatch")


async def test_health_checks_metrics_and_the_description_need_no_key_and_show_no_tenant(
    api: ApiFixture,
) -> None:
    key = await create_key(api.database, "blue-secret-tenant")
    await api.openai.with_options(api_key=key.text).files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"):
        answer = await api.http.get(path)
        assert answer.status_code == 200
        assert "blue-secret-tenant" not in answer.text


@pytest.mark.parametrize("path", ["/", "/v1/x", "/other", "//healthz", "/healthz/", "/docs/x", "/%68ealthz/"])
async def test_every_other_path_needs_a_key_even_if_it_does_not_exist(api: ApiFixture, path: str) -> None:
    assert (await api.http.get(path)).status_code == 401


async def test_an_unavailable_database_requests_a_retry(api: ApiFixture) -> None:
    api.database.rows.failing = DatabaseUnavailable("secret detail")
    answer = await respond(api, new_key())
    assert (answer.status_code, error_of(answer).type) == (503, "server_error")
    assert int(answer.headers["retry-after"]) > 0
    assert "secret" not in answer.text


async def test_the_description_documents_the_key_and_its_errors(api: ApiFixture) -> None:
    description = (await api.http.get("/openapi.json")).json()
    assert description["components"]["securitySchemes"]["API key"]["scheme"] == "bearer"
    shut = [
        way
        for path, item in description["paths"].items()
        if path[:4] in ("/v1/", "/adm")
        for way in item.values()
    ]
    assert all({"401", "403", "429"} <= set(way["responses"]) and way["security"] for way in shut)
    assert "401" not in description["paths"]["/healthz"]["get"]["responses"]


async def test_the_log_has_the_id_of_the_key_and_metrics_the_reason_of_a_refusal(
    api: ApiFixture, caplog: pytest.LogCaptureFixture
) -> None:
    key = await create_key(api.database, "blue", scopes=[Scope.READ])
    with caplog.at_level(logging.INFO, "batchwright.api.middleware.access_log"):
        await respond(api, key)
        await respond(api, key, "POST")
        await respond(api, new_key())
    text = (await api.http.get("/metrics")).text
    assert key.secret not in caplog.text + text
    assert 'batchwright_api_refusals_total{reason="scope"} ' in text
    assert 'batchwright_api_refusals_total{reason="wrong_key"} ' in text


async def test_wrong_keys_at_all_routes_and_at_metrics_count_together() -> None:
    async with open_api(auth="api_key", auth_failures_per_minute=4) as api:
        paths = ["/metrics", "/v1/files"] * 3
        answers = [await respond(api, new_key(), path=path) for path in paths]
    assert [answer.status_code for answer in answers] == [401] * 4 + [429] * 2
