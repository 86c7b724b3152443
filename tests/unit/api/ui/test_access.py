"""Access to the pages: sign-in, what a session may do, forms of other sites, and the content
security policy.
"""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest

from batchwright.api.client_limits.long_responses import ApiShutdown
from batchwright.api.ui.batch_pages import BatchPages
from batchwright.api.ui.file_pages import FilePages
from batchwright.api.ui.line_pages import LINE_PAGES
from batchwright.api.ui.list_pages import list_pages
from batchwright.api.ui.live import LiveFragments
from batchwright.rules.tenants.scopes import Scope
from batchwright.settings import load
from tests.fakes.api import ApiFixture, open_api
from tests.fakes.api_keys import create_key
from tests.unit.api.routes.batch_events.running_batch import refusals
from tests.unit.api.ui.browser import Browser

COOKIE = "batchwright_ui"


def pages() -> list[str]:
    """Return all pages that need a visitor, such as `GET /ui/batches/x`."""
    settings, live = load(), LiveFragments(ApiShutdown())
    tables = (
        BatchPages(settings, live).table(),
        LINE_PAGES,
        FilePages(settings, live).table(),
        list_pages(),
    )
    paths = [name.format(id="x", tenant="x", action="pause") for table in tables for name in table]
    return [path.replace(" ", " /ui", 1) for path in paths]


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(auth="api_key") as api:
        yield api


@pytest.mark.parametrize("page", pages())
async def test_without_a_session_every_page_asks_for_a_sign_in(api: ApiFixture, page: str) -> None:
    method, path = page.split(" ")
    response = await api.http.request(method, path)
    if method == "GET":
        assert response.status_code == 303
        assert response.headers["location"].startswith("/ui/sign-in?next=%2Fui%2F")
    else:
        assert response.status_code == 401
        assert "You are signed out" in response.text


@pytest.mark.parametrize("page", [page for page in pages() if page.startswith("POST")])
async def test_a_form_of_another_site_is_refused(api: ApiFixture, browser: Browser, page: str) -> None:
    await browser.sign_in(await create_key(api.database, "blue"))
    for fields in ({}, {"csrf": "0" * 64}):
        response = await api.http.post(page.split(" ")[1], data=fields)
        assert (response.status_code, "no longer valid" in response.text) == (403, True)
    assert api.temporal.signals == []


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites_and_contains_no_key(
    api: ApiFixture, browser: Browser
) -> None:
    key = await create_key(api.database, "blue")
    page = await browser.page("/ui/sign-in")
    before = api.http.cookies[COOKIE]
    response = await browser.send(page, "/ui/sign-in", key=key.text)
    [first, *_] = response.history
    attributes = first.headers["set-cookie"].lower().split("; ")
    assert {"httponly", "samesite=strict", "path=/ui"} <= set(attributes)
    token = api.http.cookies[COOKIE]
    assert token != before
    assert key.prefix not in token
    assert key.secret not in token
    assert "Batches" in response.text


async def test_without_a_session_the_cookie_of_forms_lasts_until_the_browser_is_closed() -> None:
    async with open_api(auth="none") as api:
        cookie = (await api.http.get("/ui/new")).headers["set-cookie"].lower()
    assert "max-age" not in cookie
    assert "expires" not in cookie


async def test_over_tls_the_cookie_is_only_sent_over_tls(api: ApiFixture) -> None:
    plain = await api.http.get("/ui/sign-in")
    api.http.cookies.clear()
    encrypted = await api.http.get("https://api/ui/sign-in")
    assert "secure" not in plain.headers["set-cookie"].lower()
    assert "secure" in encrypted.headers["set-cookie"].lower()


async def test_a_wrong_key_signs_nobody_in(api: ApiFixture, browser: Browser) -> None:
    key = await create_key(api.database, "blue")
    for wrong in ("nonsense", f"bw_{key.prefix}_{'x' * 40}"):
        page = await browser.page("/ui/sign-in")
        response = await browser.send(page, "/ui/sign-in", key=wrong)
        assert response.status_code == 401
        assert "Incorrect API key" in response.text
    assert api.database.rows.sessions == {}


async def test_a_refused_sign_in_is_counted_and_logged_without_the_key(
    api: ApiFixture, browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    key = await create_key(api.database, "blue")
    before = refusals(api)
    with caplog.at_level("WARNING"):
        page = await browser.page("/ui/sign-in")
        await browser.send(page, "/ui/sign-in", key=f"bw_{key.prefix}_{'x' * 40}")
    assert refusals(api) == before + 1
    [record] = [record for record in caplog.records if record.message == "sign-in refused"]
    assert (record.__dict__["address"], record.__dict__["reason"]) == ("127.0.0.1", "wrong_key")
    assert "x" * 40 not in repr([each.__dict__ for each in caplog.records])


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_another_site_cannot_sign_a_visitor_in(api: ApiFixture, browser: Browser, site: str) -> None:
    key = await create_key(api.database, "blue")
    csrf = (await browser.page("/ui/sign-in")).partition('name="csrf" value="')[2].partition('"')[0]
    form = {"csrf": csrf, "key": key.text}
    response = await api.http.post("/ui/sign-in", data=form, headers={"Sec-Fetch-Site": site})
    assert (response.status_code, "Another site" in response.text) == (403, True)
    assert api.database.rows.sessions == {}
    own = await api.http.post("/ui/sign-in", data=form, headers={"Sec-Fetch-Site": "same-origin"})
    assert own.status_code == 303


async def test_a_session_ends_with_its_key_its_tenant_a_sign_out_or_after_eight_hours(
    api: ApiFixture, browser: Browser
) -> None:
    async def is_signed_in() -> bool:
        return (await api.http.get("/ui/batches")).status_code == 200

    key = await create_key(api.database, "blue")
    await browser.sign_in(key)
    assert await is_signed_in()
    await api.database.tenants.disable("blue", datetime.now(UTC))
    assert not await is_signed_in()
    await api.database.tenants.enable("blue")
    [(token, (key_id, until))] = api.database.rows.sessions.items()
    assert until - datetime.now(UTC) < timedelta(hours=8)
    api.database.rows.sessions[token] = (key_id, datetime.now(UTC) - timedelta(seconds=2))
    assert not await is_signed_in()
    api.database.rows.sessions[token] = (key_id, until)
    stolen = api.http.cookies[COOKIE]
    await browser.send(await browser.page("/ui/batches"), "/ui/sign-out")
    api.http.cookies.set(COOKIE, stolen, domain="api.local", path="/ui")
    assert not await is_signed_in()
    await browser.sign_in(key)
    await api.database.api_keys.revoke(key.prefix, datetime.now(UTC))
    assert not await is_signed_in()


async def test_only_the_token_of_a_session_signs_in_and_the_database_has_no_more_than_its_hash(
    api: ApiFixture, browser: Browser
) -> None:
    await browser.sign_in(await create_key(api.database, "blue"))
    token = api.http.cookies[COOKIE]
    assert list(api.database.rows.sessions) == [sha256(token.encode()).digest()]
    api.http.cookies.set(COOKIE, token[::-1], domain="api.local", path="/ui")
    assert (await api.http.get("/ui/batches")).status_code == 303


async def test_a_session_is_worth_nothing_outside_of_the_pages(api: ApiFixture, browser: Browser) -> None:
    await browser.sign_in(await create_key(api.database, "blue"))
    headers = {"Cookie": f"{COOKIE}={api.http.cookies[COOKIE]}"}
    assert (await api.http.get("/v1/batches", headers=headers)).status_code == 401


async def test_a_visitor_sees_and_changes_only_what_the_key_may(api: ApiFixture, browser: Browser) -> None:
    red = await create_key(api.database, "red")
    headers = {"Authorization": f"Bearer {red.text}"}
    form = {"files": {"file": ("secret.jsonl", b'{"custom_id": "a"}\n')}, "data": {"purpose": "batch"}}
    file = (await api.http.post("/v1/files", headers=headers, **form)).json()["id"]  # pyright: ignore[reportArgumentType]
    body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = (await api.http.post("/v1/batches", json=body, headers=headers)).json()["id"]
    await browser.sign_in(await create_key(api.database, "blue", scopes=[Scope.READ]))
    for path in ("/ui/batches", "/ui/files"):
        page = await browser.page(path)
        assert batch not in page
        assert file not in page
        assert "New batch" not in page
    for path in (
        f"batches/{batch}",
        f"batches/{batch}/lines",
        f"batches/{batch}/events",
        f"files/{file}/content",
    ):
        assert (await browser.get(f"/ui/{path}")).status_code == 404
    signed_out = await browser.page("/ui/batches")
    csrf = signed_out.partition('name="csrf" value="')[2].partition('"')[0]
    refused = await api.http.post(f"/ui/batches/{batch}/cancel", data={"csrf": csrf})
    assert refused.status_code == 403
    assert "lacks the scope" in refused.text
    assert "missing_scope" in refused.text
    assert api.temporal.signals == []


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example/ui/", "/v1/batches", "/ui/\\evil"]
)
async def test_the_sign_in_leads_to_no_other_site(api: ApiFixture, browser: Browser, target: str) -> None:
    key = await create_key(api.database, "blue")
    page = (await api.http.get("/ui/sign-in", params={"next": target})).text
    response = await browser.send(page, "/ui/sign-in", key=key.text)
    assert response.history[0].headers["location"] == "/ui/batches"


async def test_a_link_from_another_site_keeps_the_session(api: ApiFixture) -> None:
    response = await api.http.get("/ui/batches", headers={"Sec-Fetch-Site": "cross-site"})
    assert response.status_code == 200
    assert 'http-equiv="refresh"' in response.text
    assert "set-cookie" not in response.headers


async def test_every_page_forbids_scripts_and_styles_of_others(api: ApiFixture, browser: Browser) -> None:
    await browser.sign_in(await create_key(api.database, "blue"))
    for path in ("/ui/batches", "/ui/new", "/ui/files", "/ui/batches/nothing", "/ui/nothing"):
        response = await api.http.get(path)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-frame-options"] == "DENY"
        assert "<script>" not in response.text
        assert "style=" not in response.text


async def test_pages_can_be_switched_off() -> None:
    async with open_api(auth="none", ui=False) as api:
        assert (await api.http.get("/ui/batches")).status_code == 404


async def test_pages_of_operators_need_the_role(api: ApiFixture, browser: Browser) -> None:
    await browser.sign_in(await create_key(api.database, "blue", scopes=[Scope.READ, Scope.WRITE]))
    assert "/ui/operator" not in await browser.page("/ui/batches")
    for page in ("batches", "models", "workers", "tenants", "keys", "dead-letters", "audit-log"):
        refused = await browser.get(f"/ui/operator/{page}")
        assert (refused.status_code, "lacks the scope" in refused.text) == (403, True)


async def test_behind_a_gateway_the_gateway_names_the_tenant_and_the_scopes() -> None:
    async with open_api(auth="trusted_header", scopes_header="X-May") as api:
        reader = {"X-Tenant": "blue", "X-May": "read"}
        assert (await api.http.get("/ui/batches")).status_code == 401
        page = await api.http.get("/ui/batches", headers=reader)
        assert (page.status_code, "blue" in page.text, "New batch" in page.text) == (200, True, False)
        foreign = await api.http.get("/ui/batches", headers={**reader, "Host": "evil.example"})
        assert foreign.status_code == 421


async def test_without_keys_pages_of_other_sites_cannot_send_forms() -> None:
    async with open_api(auth="none") as api:
        page = (await api.http.get("/ui/new")).text
        csrf = page.partition("csrf=")[2].partition('"')[0]
        headers = {"Origin": "https://evil.example"}
        response = await api.http.post("/ui/new", data={"csrf": csrf}, headers=headers)
        assert response.status_code == 403
        assert "may not call the API" in response.text
