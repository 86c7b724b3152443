"""Requests with tokens of an OpenID Connect issuer, beside API keys: identities, refusals, limits, logs."""

import logging
from collections.abc import AsyncGenerator

import httpx
import openai
import pytest
from pydantic import JsonValue

from batchwright.api.auth.authenticators import ApiKeyAuthenticator
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError
from batchwright.database.errors import DatabaseUnavailable
from batchwright.oidc.issuer import IssuerUnavailable
from batchwright.oidc.issuer_keys import IssuerKeys
from batchwright.rules.tenants.api_keys import ApiKey, new_key
from batchwright.telemetry.context import FieldValue, bind_fields, current_fields
from batchwright.telemetry.metrics import Metrics
from tests.fakes.api import ApiFixture, error_of, open_api
from tests.fakes.api_keys import NOW, create_key
from tests.fakes.issuer import AUDIENCE, ISSUER, FakeIssuer, ec_key, token_of

_SETTINGS = {"auth": "api_key", "oidc_issuer": ISSUER, "oidc_audience": AUDIENCE}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(**_SETTINGS, auth_failures_per_minute=0) as api:
        await api.database.tenants.create("blue", NOW)
        yield api


async def respond(
    api: ApiFixture, token: str, method: str = "GET", path: str = "/v1/files", **headers: str
) -> httpx.Response:
    return await api.http.request(method, path, headers={"Authorization": f"Bearer {token}", **headers})


async def test_the_official_client_authenticates_with_a_token_and_acts_for_the_tenant_in_it(
    api: ApiFixture,
) -> None:
    await api.database.tenants.create("red", NOW)
    client = api.openai.with_options(api_key=api.issuer.token())
    file = await client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    assert [each.id async for each in client.files.list()] == [file.id]
    other = api.openai.with_options(api_key=api.issuer.token(tenant="red"))
    assert [each.id async for each in other.files.list()] == []
    assert {tenant for tenant, _ in api.database.rows.files} == {"blue"}


async def test_a_batch_of_a_token_belongs_to_the_tenant_and_to_no_key(api: ApiFixture) -> None:
    body = {"input_file_id": "file-0", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    headers = {"Authorization": f"Bearer {api.issuer.token()}"}
    created = await api.http.post("/v1/batches", json=body, headers=headers)
    assert created.status_code == 200, created.text
    [order] = api.temporal.orders.values()
    assert (order.tenant, order.policy.caller.key_id) == ("blue", "")


async def test_keys_are_accepted_beside_tokens(api: ApiFixture) -> None:
    key, red = await create_key(api.database, "blue"), await create_key(api.database, "red")
    for headers in (
        {"Authorization": f"Bearer {key.text}"},
        {"api-key": key.text},
        {"Authorization": f"Bearer {api.issuer.token(tenant='gone')}", "api-key": key.text},
    ):
        assert (await api.http.get("/v1/files", headers=headers)).status_code == 200, headers
    for headers in (
        {"api-key": api.issuer.token()},
        {"Authorization": f"Basic {api.issuer.token()}"},
        {"Authorization": f"Bearer {key.text}", "api-key": red.text},
    ):
        answer = await api.http.get("/v1/files", headers=headers)
        assert (answer.status_code, error_of(answer).code) == (401, "invalid_api_key"), headers


async def test_two_tokens_in_a_request_are_refused(api: ApiFixture) -> None:
    headers = [("Authorization", f"Bearer {api.issuer.token(sub=name)}") for name in ("alice", "bob")]
    assert (await api.http.get("/v1/files", headers=headers)).status_code == 401


@pytest.mark.parametrize(
    ("changes", "status", "code", "message"),
    [
        ({"aud": "other"}, 401, "invalid_token", "The token is not for this API"),
        ({"iss": "https://evil.example"}, 401, "invalid_token", "The token comes from another issuer"),
        ({"exp": 1_000_000_000}, 401, "invalid_token", "The token has expired"),
        ({"nbf": 10**11}, 401, "invalid_token", "The token is not valid yet"),
        ({"tenant": None}, 403, "unusable_claim", "The token names no tenant"),
        ({"sub": None}, 403, "unusable_claim", "The token identifies no user"),
        ({"tenant": "new"}, 403, "tenant_unknown", "The tenant 'new' does not exist."),
        ({"tenant": "gone"}, 403, "tenant_disabled", "The tenant 'gone' is disabled."),
        ({"scope": "write"}, 403, "missing_scope", "This token lacks the scope 'read'"),
        ({"scope": None}, 403, "missing_scope", "This token lacks the scope 'read'"),
    ],
)
async def test_a_token_that_may_not_do_this_is_refused_with_the_reason(
    api: ApiFixture, changes: dict[str, JsonValue], status: int, code: str, message: str
) -> None:
    await api.database.tenants.create("gone", NOW)
    await api.database.tenants.disable("gone", NOW)
    for _ in range(2):  # the second time, the token may be cached
        answer = await respond(api, api.issuer.token_with(changes))
        assert (answer.status_code, error_of(answer).code) == (status, code)
        assert error_of(answer).message.startswith(message)
        challenge = 'Bearer error="invalid_token"' if status == 401 else None
        assert answer.headers.get("www-authenticate") == challenge


async def test_forged_tokens_are_refused_and_the_official_client_understands_it(api: ApiFixture) -> None:
    unsigned = token_of({"alg": "none"}, api.issuer.claims(), lambda _: b"")
    for token in (unsigned, api.issuer.token(ec_key("first")), api.issuer.token(ec_key("other")), "a.b.c"):
        with pytest.raises(openai.AuthenticationError) as raised:
            await api.openai.with_options(api_key=token).files.list()
        assert raised.value.code == "invalid_token"


@pytest.mark.parametrize(
    "text", ["sk-proj-1", "bw_k3v9x0q2m4tz_short", "a.b", "a.b.c.d", "eyJhbGciOiJIUzI1NiJ9"]
)
async def test_text_that_has_not_the_form_of_a_token_is_refused_as_a_wrong_key(
    api: ApiFixture, text: str
) -> None:
    answer = await respond(api, text)
    assert (answer.status_code, error_of(answer).code) == (401, "invalid_api_key")
    assert api.issuer.fetches == 0


async def test_naming_another_tenant_than_that_of_the_token_is_refused(api: ApiFixture) -> None:
    token = api.issuer.token()
    own, other = [await respond(api, token, **{"X-Tenant": name}) for name in ("blue", "red")]
    assert (own.status_code, other.status_code, error_of(other).code) == (200, 403, "tenant_mismatch")


async def test_a_disabled_tenant_is_refused_although_its_token_is_valid(api: ApiFixture) -> None:
    client, token = Client(api), api.issuer.token()
    assert await client.attempt(token) == 0
    await api.database.tenants.disable("blue", NOW)
    client.seconds += 2
    assert await client.attempt(token) == 403


async def test_while_no_keys_can_be_fetched_a_retry_is_requested(api: ApiFixture) -> None:
    api.issuer.problem = "secret detail"
    key = await create_key(api.database, "blue")
    answer = await respond(api, api.issuer.token())
    assert (answer.status_code, error_of(answer).type) == (503, "server_error")
    assert error_of(answer).message.startswith("The issuer of tokens does not answer")
    assert int(answer.headers["retry-after"]) > 0
    assert "secret" not in answer.text
    assert (await respond(api, key.text)).status_code == 200
    with pytest.raises(openai.InternalServerError):
        await api.openai.with_options(api_key=api.issuer.token()).files.list()


async def test_metrics_of_tenants_need_a_token_of_an_administrator(api: ApiFixture) -> None:
    series = 'batchwright_quota_refusals_total{quota="batches",tenant="red-secret"} 1.0'
    api.metrics.quota_refusals.labels("red-secret", "batches").inc()
    shown = await respond(api, api.issuer.token(scope="admin"), path="/metrics")
    assert (shown.status_code, series in shown.text) == (200, True)
    assert (await respond(api, api.issuer.token(), path="/metrics")).status_code == 403
    api.metrics.quota_refusals.clear()


async def test_metrics_are_shown_without_tenants_while_the_issuer_is_down(api: ApiFixture) -> None:
    api.issuer.problem = "it is down"
    answer = await respond(api, api.issuer.token(scope="admin"), path="/metrics")
    assert answer.status_code == 200


def refused(api: ApiFixture, reason: str) -> float:
    name = "batchwright_api_refusals_total"
    return api.metrics.registry.get_sample_value(name, {"reason": reason}) or 0


async def test_the_log_has_the_user_and_metrics_the_reason_of_a_refusal_and_neither_has_the_token(
    api: ApiFixture, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = {
        "": api.issuer.token(scope="read write admin"),
        "expired_token": api.issuer.token(exp=1_000_000_000),
        "wrong_token": api.issuer.token(ec_key("other")),
        "claim": api.issuer.token(tenant=None),
        "tenant": api.issuer.token(tenant="new"),
        "scope": api.issuer.token(scope="write"),
    }
    shown = ""
    with caplog.at_level(logging.DEBUG):
        for reason, token in tokens.items():
            before = {each: refused(api, each) for each in tokens}
            shown += (await respond(api, token)).text
            expected = {each: before[each] + (each == reason != "") for each in tokens}
            assert {each: refused(api, each) for each in tokens} == expected
        body = {"tenant": "blue"}
        headers = {"Authorization": f"Bearer {tokens['']}"}
        held = await api.http.put("/admin/holds", json=body, headers=headers)
    assert held.status_code == 200, held.text
    metrics = (await api.http.get("/metrics")).text
    logged = caplog.text + repr([vars(record) for record in caplog.records])
    for token in tokens.values():
        assert not any(part in logged + metrics + shown for part in token.split("."))
    assert {vars(record)["operator"] for record in caplog.records if "operator" in vars(record)} == {"alice"}


async def test_the_description_names_the_issuer(api: ApiFixture) -> None:
    described = (await api.http.get("/openapi.json")).json()["components"]["securitySchemes"]["API key"]
    assert ISSUER in described["description"]


async def test_without_an_issuer_a_token_is_a_wrong_key() -> None:
    async with open_api(auth="api_key", auth_failures_per_minute=0) as api:
        answer = await respond(api, api.issuer.token())
        assert (answer.status_code, error_of(answer).code) == (401, "invalid_api_key")
        assert api.issuer.fetches == 0


class Client:
    """An authenticator with its own clock. `attempt` calls it as a client would."""

    def __init__(self, api: ApiFixture, **settings: object) -> None:
        self.seconds = 1000.0
        self.issuer = api.issuer
        deps = ApiDependencies(
            *(api.settings.model_copy(update=settings), api.database, api.storage, api.temporal),
            *(api.served, Metrics()),
            issuer_keys=IssuerKeys(api.issuer.fetch, lambda: self.seconds),
        )
        self.authenticator = ApiKeyAuthenticator(deps, lambda: self.seconds)

    async def attempt(self, credential: str | ApiKey, address: str = "192.0.2.1") -> int:
        """Authenticate with the key or token. Return 0 for success, or the status of the error.

        503 means that access could not be checked.
        """
        text = credential.text if isinstance(credential, ApiKey) else credential
        headers = [(b"authorization", b"Bearer " + text.encode())]
        scope = {"type": "http", "method": "GET", "path": "/v1/files", "headers": headers}
        try:
            await self.authenticator.authenticate({**scope, "client": (address, 1)})
        except ApiError as error:
            return error.status
        except (DatabaseUnavailable, IssuerUnavailable):
            return 503
        return 0


def forged(issuer: FakeIssuer) -> str:
    return issuer.token(ec_key("first"))


async def test_wrong_tokens_and_wrong_keys_are_limited_by_address_together(api: ApiFixture) -> None:
    client = Client(api, auth_failures_per_minute=3)
    wrong = [forged(api.issuer), new_key(), api.issuer.token(tenant=None), forged(api.issuer), new_key()]
    assert [await client.attempt(each) for each in wrong] == [401, 401, 403, 429, 429]
    assert await client.attempt(forged(api.issuer), "192.0.2.2") == 401
    client.seconds += 20
    assert [await client.attempt(forged(api.issuer)) for _ in range(2)] == [401, 429]


async def test_a_token_that_was_valid_before_is_accepted_beyond_the_limit(api: ApiFixture) -> None:
    client = Client(api, auth_failures_per_minute=1)
    known = api.issuer.token()
    assert await client.attempt(known) == 0
    assert [await client.attempt(forged(api.issuer)) for _ in range(2)] == [401, 429]
    assert await client.attempt(known) == 0
    assert await client.attempt(api.issuer.token(sub="bob")) == 429


async def test_neither_valid_tokens_nor_those_that_could_not_be_checked_count_as_failures(
    api: ApiFixture,
) -> None:
    client = Client(api, auth_failures_per_minute=1)
    api.issuer.problem = "it is down"
    assert [await client.attempt(api.issuer.token(sub=name)) for name in "abc"] == [503] * 3
    api.issuer.problem = ""
    client.seconds += 10
    assert [await client.attempt(api.issuer.token(sub=name)) for name in "abc"] == [0] * 3
    assert [await client.attempt(forged(api.issuer)) for _ in range(2)] == [401, 429]


async def test_an_unavailable_database_is_no_reason_to_refuse_a_token(api: ApiFixture) -> None:
    client = Client(api, auth_failures_per_minute=1)
    api.database.rows.failing = DatabaseUnavailable("it is down")
    assert [await client.attempt(api.issuer.token(sub=name)) for name in "abc"] == [503] * 3
    api.database.rows.failing = None
    assert await client.attempt(api.issuer.token()) == 0


async def test_log_messages_of_a_request_have_its_tenant_and_its_key_or_user(api: ApiFixture) -> None:
    client, key = Client(api), await create_key(api.database, "blue")
    [row] = await api.database.api_keys.all("blue")
    logged = list[dict[str, FieldValue]]()
    for credential in (key, api.issuer.token(sub="bob")):
        with bind_fields():
            assert await client.attempt(credential) == 0
            logged.append(dict(current_fields()))
    assert logged == [{"tenant": "blue", "key_id": row.id}, {"tenant": "blue", "user": "bob"}]
