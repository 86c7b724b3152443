"""Access matrix: every route in every authentication mode, called by every kind of caller.

`tests/unit/api/test_every_route.py` compares the table of routes with the application.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
import pytest

from batchwright.rules.tenants.scopes import Scope, is_granted
from tests.fakes.api import ApiFixture, error_of, open_api
from tests.fakes.api_keys import NOW, create_key
from tests.fakes.issuer import AUDIENCE, ISSUER
from tests.unit.api.route_calls import OPEN, TABLE, TOKEN
from tests.unit.api.test_every_route import code_of

_NAMES: list[str] = [
    "file_id",
    "upload_id",
    "batch_id",
    "message_batch_id",
    "model",
    "tenant",
    "letter_id",
    "token",
    "name",
    "kind",
    "webhook_id",
    "delivery_id",
    "schedule_id",
    "response_id",
    "job_id",
    "key_id",
]
_ALL = frozenset(Scope)
_TENANT = {"X-Tenant": "blue"}
_FOREIGN_HOST = {"Host": "evil.example"}
_FOREIGN_ORIGIN = {"Origin": "https://evil.example"}
_SHUT_OUT = 401


@dataclass(frozen=True)
class Caller:
    """A kind of caller.

    `scopes` has the caller's scopes. If the caller may call no protected route, it is the status that these
    routes return.
    """

    name: str
    scopes: frozenset[Scope] | int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    key: Scope | None = None
    token: Scope | None = None  # scope of a token of the issuer
    page: bool = False  # a web page of another site, which sends no secret
    rebound: bool = False  # a DNS name of another site that resolves to the API


@dataclass(frozen=True)
class Mode:
    name: str
    settings: Mapping[str, object]
    callers: tuple[Caller, ...]


def scopes(*scopes: Scope) -> frozenset[Scope]:
    return frozenset(scopes)


_USER = scopes(Scope.READ, Scope.WRITE)
_ADMINISTRATOR = {**_TENANT, "X-May": "read write admin"}
MODES = (
    Mode(
        "none",
        {"auth": "none"},
        (
            Caller("anyone", _ALL),
            Caller("anyone who names a tenant", _ALL, _TENANT),
            Caller("a page of another site", _ALL, _FOREIGN_ORIGIN, page=True),
            Caller("a page by a foreign name", _ALL, _FOREIGN_HOST, rebound=True),
        ),
    ),
    Mode(
        "api_key",
        {"auth": "api_key", "auth_failures_per_minute": 0},
        (
            Caller("no key", _SHUT_OUT),
            Caller("a tenant's name instead of a key", _SHUT_OUT, _TENANT),
            *(Caller(f"a key of {scope}", scopes(scope), key=scope) for scope in Scope),
            Caller("a key by another name", scopes(Scope.ADMIN), _FOREIGN_HOST, key=Scope.ADMIN),
            Caller("a page that has a key", scopes(Scope.ADMIN), _FOREIGN_ORIGIN, key=Scope.ADMIN),
        ),
    ),
    Mode(
        "api_key with tokens of an issuer",
        {
            **{"auth": "api_key", "auth_failures_per_minute": 0},
            **{"oidc_issuer": ISSUER, "oidc_audience": AUDIENCE},
        },
        (
            Caller("no key", _SHUT_OUT),
            *(Caller(f"a token of {scope}", scopes(scope), token=scope) for scope in Scope),
            Caller("a key", scopes(Scope.READ), key=Scope.READ),
            Caller("a page that has a token", scopes(Scope.ADMIN), _FOREIGN_ORIGIN, token=Scope.ADMIN),
        ),
    ),
    Mode(
        "trusted_header",
        {"auth": "trusted_header"},
        (
            Caller("no tenant", _SHUT_OUT),
            Caller("a tenant", _USER, _TENANT),
            Caller(
                "a tenant that says what it may", _USER, {**_TENANT, "X-Scopes": "admin", "X-May": "admin"}
            ),
            Caller("a page of another site", _USER, {**_TENANT, **_FOREIGN_ORIGIN}, page=True),
            Caller("a page by a foreign name", _USER, {**_TENANT, **_FOREIGN_HOST}, rebound=True),
        ),
    ),
    Mode(
        "trusted_header with scopes",
        {"auth": "trusted_header", "scopes_header": "X-May"},
        (
            Caller("no tenant", _SHUT_OUT, {"X-May": "read write admin"}),
            Caller("no scopes", frozenset(), _TENANT),
            Caller("a user", _USER, {**_TENANT, "X-May": "read write"}),
            Caller("a viewer", scopes(Scope.VIEWER), {**_TENANT, "X-May": "viewer"}),
            Caller("an operator", scopes(Scope.OPERATOR), {**_TENANT, "X-May": "operator"}),
            Caller("an administrator", scopes(Scope.ADMIN), {**_TENANT, "X-May": "admin"}),
            Caller("a page of another site", _ALL, {**_ADMINISTRATOR, **_FOREIGN_ORIGIN}, page=True),
            Caller("a page by a foreign name", _ALL, {**_ADMINISTRATOR, **_FOREIGN_HOST}, rebound=True),
        ),
    ),
)


def expected(route: str, caller: Caller) -> str:
    wanted = TABLE[route][0]
    if wanted == TOKEN:
        return "401 invalid_callback_token"
    if caller.rebound:
        return "421"
    if caller.page and not route.startswith("GET "):
        return "403"
    if wanted is OPEN:
        return "in"
    if isinstance(caller.scopes, int):
        return str(caller.scopes)
    return "in" if is_granted(Scope(wanted), caller.scopes) else "403 missing_scope"


def found(answer: httpx.Response) -> str:
    if answer.status_code not in (401, 403, 421):
        return "in"
    code = code_of(answer)
    expected_code = code if code in ("missing_scope", "invalid_callback_token") else ""
    return f"{answer.status_code} {expected_code}".strip()


async def respond(api: ApiFixture, route: str, caller: Caller) -> httpx.Response:
    method, path = route.split(" ")
    headers = dict(caller.headers)
    if caller.key is not None:
        key = await create_key(api.database, "blue", scopes=[caller.key])
        headers["Authorization"] = f"Bearer {key.text}"
    if caller.token is not None:
        await api.database.tenants.create("blue", NOW)
        headers["Authorization"] = f"Bearer {api.issuer.token(scope=caller.token)}"
    return await api.http.request(method, path.format_map(dict.fromkeys(_NAMES, "x")), headers=headers)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
async def test_every_route_accepts_the_callers_of_its_access_mode(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: dict[str, tuple[str, str]] = {}
    async with open_api(**mode.settings) as api:
        # To make the whole description takes as long as all other requests.
        monkeypatch.setattr(api.app, "openapi_schema", {"paths": {}})
        for caller in mode.callers:
            for route in TABLE:
                if route == "GET /metrics" and caller.scopes != _ALL:
                    continue  # public without the metrics of tenants: see below
                got, wanted = found(await respond(api, route, caller)), expected(route, caller)
                if got != wanted:
                    wrong[f"{route} by {caller.name}"] = (got, wanted)
    assert wrong == {}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
async def test_metrics_with_tenants_need_an_administrator(mode: Mode) -> None:
    series = 'batchwright_quota_refusals_total{quota="batches",tenant="red-secret"} 1.0'
    async with open_api(**mode.settings) as api:
        api.metrics.quota_refusals.labels("red-secret", "batches").inc()
        for caller in mode.callers:
            answer = await respond(api, "GET /metrics", caller)
            if caller.rebound:
                assert answer.status_code == 421, caller
            elif isinstance(caller.scopes, int):  # as Prometheus scrapes
                assert (answer.status_code, series in answer.text) == (200, False), caller
            elif is_granted(Scope.VIEWER, caller.scopes):
                assert (answer.status_code, series in answer.text) == (200, True), caller
            else:
                assert (answer.status_code, error_of(answer).code) == (403, "missing_scope"), caller
        api.metrics.quota_refusals.clear()


async def test_callbacks_are_accepted_under_any_host_name() -> None:
    async with open_api(auth="none", callback_secret="s" * 40) as api:
        answer = await api.http.post("/tasks/callback/x", headers={**_FOREIGN_HOST, **_FOREIGN_ORIGIN})
    assert (answer.status_code, error_of(answer).code) == (401, "invalid_callback_token")
