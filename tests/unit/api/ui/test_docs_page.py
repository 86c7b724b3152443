"""The page `/docs`: it shows the whole OpenAPI description to everybody, and looks like the other pages."""

import re
from html import unescape

import pytest

from tests.fakes.api import ApiFixture, open_api
from tests.fakes.api_keys import create_key
from tests.unit.api.ui.browser import Browser, text_of


async def static_files(api: ApiFixture, page: str) -> None:
    """Check that a page gets its style and its scripts."""
    paths = re.findall(r'(?:href|src)="(/ui/static/[^"]+)"', page)
    assert len(paths) == 4
    assert [(await api.http.get(path)).status_code for path in paths] == [200] * 4


async def test_the_page_shows_every_route_and_schema_and_needs_no_other_server() -> None:
    async with open_api(auth="none") as api:
        description = (await api.http.get("/openapi.json")).json()
        page = (await api.http.get("/docs")).text
        shown = text_of(page)
        for path, methods in description["paths"].items():
            for method, operation in methods.items():
                description_start = " ".join(operation["description"].split("`")[0].split())
                assert f"{method.upper()} {path} {description_start}" in shown
        anchors = set(re.findall(r'<pre id="(\w+)"', page))
        assert anchors == set(description["components"]["schemas"])
        references = set(re.findall(r'href="#(\w+)"', page)) - {"content"}
        assert references <= anchors
        assert len(references) > 20
        assert '"format": "binary"' in unescape(page)
        assert re.findall(r"(?:src|href)=.?(?:https?:)?//", page) == []


@pytest.mark.parametrize("auth", ["none", "api_key", "trusted_header"])
async def test_everybody_gets_the_same_page_with_links_to_the_others(auth: str) -> None:
    async with open_api(auth=auth) as api:
        page = await api.http.get("/docs")
        assert page.status_code == 200
        assert "set-cookie" not in page.headers
        for link in ("/ui/batches", "/ui/files", "/ui/limits", "/docs"):
            assert f'<a href="{link}">' in page.text
        assert ('<a href="/ui/operator/batches">' in page.text) == (auth == "none")
        await static_files(api, page.text)
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert re.findall(r"<style|<script>| style=", page.text) == []
        if auth == "api_key":
            browser = Browser(api)
            await browser.sign_in(await create_key(api.database, "blue"))
            signed_in = await browser.page("/docs")
            assert signed_in == page.text
            assert "blue" not in signed_in


async def test_without_pages_it_is_the_only_one() -> None:
    async with open_api(auth="none", ui=False) as api:
        page = (await api.http.get("/docs")).text
        await static_files(api, page)
        assert set(re.findall(r'href="(/[^"?]*)', page)) == {
            *("/docs", "/openapi.json", "/ui/static/style.css", "/ui/static/icon.svg")
        }
        for path in ("/ui", "/ui/batches", "/docs/batches"):
            assert (await api.http.get(path)).json()["error"]["type"] == "invalid_request_error"
        for path in ("/ui/static/nothing", "/ui/static/"):
            assert (await api.http.get(path)).status_code == 404
        assert (await api.http.post("/docs")).status_code == 405
