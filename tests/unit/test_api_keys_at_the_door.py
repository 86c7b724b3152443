"""Requests with keys: which open, which do not and look alike, what each may do, what is told of it."""

import logging
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import httpx
import openai
import pytest

from api.limits import LimitsObject
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.quotas_base import Spent
from batchwright.rules.api_keys import ApiKey, Scope, new_key
from tests.fakes.api import House, error_of, open_house, read
from tests.fakes.keys import made_key
from tests.fakes.spent import tell_spent


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    # Houses of equal settings are one application, which would remember the failures of other tests.
    async with open_house(auth="api_key", auth_failures_per_minute=0) as house:
        yield house


def bearer(key: ApiKey | str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.text if isinstance(key, ApiKey) else key}"}


async def asked(
    house: House, key: ApiKey | str, method: str = "GET", path: str = "/v1/files"
) -> httpx.Response:
    return await house.http.request(method, path, headers=bearer(key))


async def test_the_official_client_comes_in_with_its_key_and_works_for_its_tenant(house: House) -> None:
    blue, red = await made_key(house.database, "blue"), await made_key(house.database, "red")
    client = house.openai.with_options(api_key=blue.text)
    file = await client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    assert [each.id async for each in client.files.list()] == [file.id]
    assert [each.id async for each in client.with_options(api_key=red.text).files.list()] == []
    assert {tenant for tenant, _ in house.database.rows.files} == {"blue"}


async def test_a_batch_knows_its_key_and_the_key_what_is_left_of_its_budget(house: House) -> None:
    key = await made_key(house.database, "blue")
    body = {"input_file_id": "file-0", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    await house.http.post("/v1/batches", json=body, headers=bearer(key))
    [order] = house.temporal.orders.values()
    [row] = await house.database.api_keys.all("blue")
    assert order.policy.caller.key_id == row.id
    await house.database.api_keys.limit(row.id, 100)
    spent = (Spent("blue", row.id, 30), Spent("blue", "key_other", 50))
    await tell_spent(house.database.quotas, "w", *spent)
    limits = read(await asked(house, key, path="/v1/x/limits"), LimitsObject)
    assert limits.key is not None
    assert (limits.key.limit, limits.key.used, limits.key.left) == (100, 30, 70)


async def test_without_a_key_the_official_client_says_so(house: House) -> None:
    answer = await house.http.get("/v1/files")
    assert (answer.status_code, error_of(answer).code) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    with pytest.raises(openai.AuthenticationError):
        await house.openai.with_options(api_key="sk-other").files.list()


async def test_all_keys_that_open_nothing_look_alike_and_cost_the_same(house: House) -> None:
    now = datetime.now(UTC)
    right = await made_key(house.database, "blue")
    shut = {
        "unknown": new_key(),
        "wrong secret": ApiKey(right.prefix, new_key().secret),
        "expired": await made_key(house.database, "blue", expires_at=now - timedelta(seconds=1)),
        "revoked": await made_key(house.database, "blue", revoked_at=now - timedelta(days=1)),
        "of a disabled tenant": await made_key(house.database, "gone"),
    }
    await house.database.tenants.disable("gone", now)
    await asked(house, right)  # remembered by now, which must not show
    answers: dict[str, tuple[int, str, dict[str, str], int]] = {}
    for name, key in shut.items():
        before = house.database.rows.key_lookups
        answer = await asked(house, key)
        headers = {name: value for name, value in answer.headers.items() if name != "x-request-id"}
        answers[name] = (
            answer.status_code,
            answer.text,
            headers,
            house.database.rows.key_lookups - before,
        )
    first = answers["unknown"]
    assert (first[0], first[3]) == (401, 1)
    assert {name for name, answer in answers.items() if answer != first} == set()
    assert (await asked(house, right)).status_code == 200


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic {}", "{}", "Bearer {} x", "Bearer {},{}", "Bearer bw_x_y", "bearer\t{}"],
)
async def test_what_is_not_one_bearer_key_opens_nothing(house: House, header: str) -> None:
    key = await made_key(house.database, "blue")
    answer = await house.http.get("/v1/files", headers={"Authorization": header.replace("{}", key.text)})
    assert (answer.status_code, error_of(answer).code) == (401, "invalid_api_key")


async def test_two_keys_in_a_request_open_nothing(house: House) -> None:
    keys = [await made_key(house.database, tenant) for tenant in ("blue", "red")]
    headers = [("Authorization", f"Bearer {key.text}") for key in keys]
    assert (await house.http.get("/v1/files", headers=headers)).status_code == 401


async def test_the_word_bearer_may_be_written_as_one_likes(house: House) -> None:
    key = await made_key(house.database, "blue")
    for word in ("bearer", "BEARER", "Bearer "):
        answer = await house.http.get("/v1/files", headers={"Authorization": f"{word} {key.text}"})
        assert answer.status_code == 200


async def test_a_scope_that_is_lacking_is_named(house: House) -> None:
    key = await made_key(house.database, "blue", scopes=[Scope.READ])
    answer = await asked(house, key, "DELETE", "/v1/files/file-x")
    assert (answer.status_code, error_of(answer).code) == (403, "missing_scope")
    assert "'write'" in error_of(answer).message
    with pytest.raises(openai.PermissionDeniedError):
        await house.openai.with_options(api_key=key.text).batches.cancel("batch_x")


async def test_a_tenant_that_is_not_the_keys_is_refused_and_its_own_may_be_named(house: House) -> None:
    key = await made_key(house.database, "blue")
    own = await house.http.get("/v1/files", headers={**bearer(key), "X-Tenant": "blue"})
    other = await house.http.get("/v1/files", headers={**bearer(key), "X-Tenant": "red"})
    assert own.status_code == 200
    assert (other.status_code, error_of(other).code) == (403, "tenant_mismatch")


async def test_probes_scrapes_and_the_description_need_no_key_and_tell_of_no_tenant(house: House) -> None:
    key = await made_key(house.database, "blue-secret-tenant")
    await house.openai.with_options(api_key=key.text).files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"):
        answer = await house.http.get(path)
        assert answer.status_code == 200
        assert "blue-secret-tenant" not in answer.text


@pytest.mark.parametrize("path", ["/", "/v1/x", "/other", "//healthz", "/healthz/", "/docs/x", "/%68ealthz/"])
async def test_whatever_is_not_open_needs_a_key_whether_or_not_it_exists(house: House, path: str) -> None:
    assert (await house.http.get(path)).status_code == 401


async def test_a_database_that_is_away_asks_for_a_retry(house: House) -> None:
    house.database.rows.failing = DatabaseUnavailable("secret detail")
    answer = await asked(house, new_key())
    assert (answer.status_code, error_of(answer).type) == (503, "server_error")
    assert int(answer.headers["retry-after"]) > 0
    assert "secret" not in answer.text


async def test_the_description_names_the_key_and_how_it_is_refused(house: House) -> None:
    description = (await house.http.get("/openapi.json")).json()
    assert description["components"]["securitySchemes"]["API key"]["scheme"] == "bearer"
    shut = [
        way
        for path, item in description["paths"].items()
        if path[:4] in ("/v1/", "/adm")
        for way in item.values()
    ]
    assert all({"401", "403", "429"} <= set(way["responses"]) and way["security"] for way in shut)
    assert "401" not in description["paths"]["/healthz"]["get"]["responses"]


async def test_the_log_and_metrics_tell_the_keys_id_and_why_it_was_refused(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    key = await made_key(house.database, "blue", scopes=[Scope.READ])
    with caplog.at_level(logging.INFO, "api.request_log"):
        await asked(house, key)
        await asked(house, key, "POST")
        await asked(house, new_key())
    text = (await house.http.get("/metrics")).text
    assert key.secret not in caplog.text + text
    assert 'batchwright_api_refusals_total{reason="scope"} ' in text
    assert 'batchwright_api_refusals_total{reason="wrong_key"} ' in text
