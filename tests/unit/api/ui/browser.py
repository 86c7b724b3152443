"""A browser without JavaScript: it follows redirects, keeps cookies, and sends the forms of a page.

Also an input of 60 lines, and a text that a page has to escape.
"""

import re
from html import unescape
from html.parser import HTMLParser

import httpx

from batchwright.rules.tenants.api_keys import ApiKey
from tests.fakes.api import ApiFixture

HOSTILE = '<script>alert("1")</script>\u202e\' onload="x"'
INPUT = b"".join(
    b'{"custom_id": "line-%d", "method": "POST", "url": "/v1/embeddings", ' % number
    + b'"body": {"model": "llama", "input": "q%d"}}\n' % number
    for number in range(60)
)


class _Forms(HTMLParser):
    """The forms of a page that change something: the action and the fields of each."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form" and values["method"] == "post":
            self.found.append((values["action"], {}))
        elif tag == "input" and self.found and "name" in values and values.get("type") != "checkbox":
            self.found[-1][1][values["name"]] = values.get("value", "")


class Browser:
    def __init__(self, api: ApiFixture) -> None:
        self._http = api.http

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self._http.get(path, headers=headers, follow_redirects=True)

    async def page(self, path: str) -> str:
        """Return the HTML of a page. Fail if the response is not a success."""
        response = await self.get(path)
        assert response.status_code == 200, response.text
        return response.text

    async def send(self, page: str, action: str, **fields: str) -> httpx.Response:
        """Send the form of a page whose action begins with `action`, with further fields."""
        forms = _Forms()
        forms.feed(page)
        url, given = next(form for form in forms.found if form[0].startswith(action))
        return await self._http.post(url, data={**given, **fields}, follow_redirects=True)

    async def upload(self, page: str, content: bytes, name: str = "input.jsonl") -> httpx.Response:
        forms = _Forms()
        forms.feed(page)
        url, _ = next(form for form in forms.found if form[0].startswith("/ui/files"))
        form = {"data": {"purpose": "batch"}, "files": {"file": (name, content)}}
        return await self._http.post(url, **form, follow_redirects=True)  # pyright: ignore[reportArgumentType]

    async def sign_in(self, key: ApiKey) -> httpx.Response:
        return await self.send(await self.page("/ui/sign-in"), "/ui/sign-in", key=key.text)


def text_of(page: str) -> str:
    """Return the visible text of a page, with single spaces."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())
