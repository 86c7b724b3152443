"""The pages of files and new batches, used without JavaScript: upload, check, estimate and download."""

import asyncio
from collections.abc import AsyncGenerator
from html import unescape

import pytest

from batchwright.api.ui import file_pages
from tests.fakes.api import ApiFixture, open_api
from tests.fakes.event_stream import listening
from tests.unit.api.ui.browser import HOSTILE, INPUT, Browser, text_of

MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(auth="none") as api:
        yield api


async def test_a_person_uploads_a_file_sees_the_estimate_and_submits_a_batch(
    api: ApiFixture, browser: Browser
) -> None:
    estimated = await browser.upload(await browser.page("/ui/new"), INPUT, name=f"{HOSTILE}.jsonl")
    assert estimated.status_code == 200
    assert "<script>alert" not in estimated.text
    assert "<option selected>/v1/embeddings</option>" in estimated.text
    assert "llama 60" in text_of(estimated.text)
    fields = {"window": "2h", "priority": "4", "metadata": "run=7\nteam = search"}
    wrong = await browser.send(estimated.text, "/ui/new", **{**fields, "priority": "high"})
    assert (wrong.status_code, "priority has to be a whole number" in wrong.text) == (400, True)
    page = await browser.send(estimated.text, "/ui/new", **fields)
    again = await browser.send(estimated.text, "/ui/new", **fields)  # a double click
    assert page.url == again.url
    [row] = api.database.rows.batches.values()
    assert page.url.path == f"/ui/batches/{row.order.batch_id}"
    assert (row.order.completion_window, row.order.priority) == ("2h", 4)
    assert row.order.metadata == {"run": "7", "team": "search"}


async def test_the_estimate_names_the_lines_with_errors(browser: Browser) -> None:
    page = await browser.upload(await browser.page("/ui/new"), INPUT + b"{nonsense\n")
    assert "The batch would fail" in page.text
    assert "Line 61:" in page.text


async def test_problems_are_shown_with_line_numbers_while_a_file_is_uploaded(
    api: ApiFixture, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_pages, "_CHECK_SECONDS", 0)
    url, events = upload_urls(await browser.page("/ui/new"))
    bad = b'{"custom_id": "x", "method": "<script>alert(1)</script>", "url": "/v1/embeddings", "body": {}}\n'
    arrived = asyncio.Event()
    async with listening(api.app, events) as stream:
        assert "Its lines are checked as they arrive" in (await stream.next()).decode()
        form = form_until(arrived, INPUT[:30], INPUT[30:], bad, INPUT[:30])
        upload, shown = asyncio.create_task(api.http.post(url, content=form, headers=MULTIPART)), ""
        while "Line 61" not in shown:
            shown = (await stream.next()).decode()
        arrived.set()
        uploaded = await upload
    assert "61 lines checked" in text_of(shown)
    assert "<script>alert" not in shown
    page = await browser.page(uploaded.headers["location"])  # without JavaScript, it is shown here only
    assert "Line 61:" in page
    async with listening(api.app, events) as stream:  # nothing is kept of the upload
        assert "Its lines are checked as they arrive" in (await stream.next()).decode()


@pytest.mark.parametrize("same_page", [False, True])
async def test_two_uploads_of_a_visitor_are_checked_and_the_page_of_a_third_says_that_it_is_not(
    api: ApiFixture, browser: Browser, monkeypatch: pytest.MonkeyPatch, *, same_page: bool
) -> None:
    monkeypatch.setattr(file_pages, "_CHECK_SECONDS", 0)
    pages = [upload_urls(await browser.page("/ui/new")) for _ in range(3)]
    first, second, third = pages[0], pages[1], pages[1 if same_page else 2]
    arrived = asyncio.Event()

    async def shown(page: tuple[str, str], text: str, uploads: asyncio.TaskGroup) -> str:
        """Begin an upload on a page. Return what the page shows as soon as that contains `text`."""
        url, events = page
        uploads.create_task(api.http.post(url, content=form_until(arrived, INPUT), headers=MULTIPART))
        async with asyncio.timeout(60), listening(api.app, events) as stream:
            while text not in (found := text_of((await stream.next()).decode())):
                pass
        return found

    async with asyncio.TaskGroup() as uploads:
        for page in (first, second):
            await shown(page, "60 lines checked", uploads)
        unchecked = await shown(third, "because other uploads are being checked now", uploads)
        arrived.set()
    assert "received" in unchecked
    assert "lines checked" not in unchecked
    async with asyncio.TaskGroup() as uploads:
        arrived.clear()
        await shown(third, "60 lines checked", uploads)  # the others have ended
        arrived.set()


async def test_files_are_listed_downloaded_and_deleted(api: ApiFixture, browser: Browser) -> None:
    file = await api.upload(INPUT)
    page = await browser.page("/ui/files")
    content = await browser.get(f"/ui/files/{file.id}/content")
    part = await browser.get(f"/ui/files/{file.id}/content", Range="bytes=0-9")
    assert (content.content, part.content, part.status_code) == (INPUT, INPUT[:10], 206)
    assert content.headers["content-disposition"].startswith("attachment")
    assert "script-src" not in content.headers["content-security-policy"]
    assert file.id not in (await browser.send(page, f"/ui/files/{file.id}/delete")).text


async def test_a_file_of_another_form_is_not_found_before_it_is_read(browser: Browser) -> None:
    response = await browser.get("/ui/new?file=file-01a21b51be8b71f2a84f7a5b43141424/content")
    assert response.status_code == 404


def upload_urls(page: str) -> tuple[str, str]:
    """Return the URL to which a page uploads a file, and the URL of the events about it."""
    action, events = '<form class="stack" method="post" action="', 'hx-sse:connect="'
    url, stream = (page.partition(before)[2].partition('"')[0] for before in (action, events))
    return unescape(url), unescape(stream)


async def form_until(arrived: asyncio.Event, *contents: bytes) -> AsyncGenerator[bytes]:
    """Yield the form of a file in pieces, the last one when `arrived` is set."""
    yield b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    for content in contents:
        yield content
    await asyncio.wait_for(arrived.wait(), 60)
    yield b"\r\n--b--\r\n"
