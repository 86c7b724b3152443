"""The pages in a real browser, on a whole stack with API keys.

At both widths, in both colour schemes, and without JavaScript: nothing violates the pages' content security
policy, no text of users is used as markup, and axe finds no serious barrier.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect

from tests.browser.chromium import axe, chromium
from tests.browser.holding_proxy import holding_proxy
from tests.browser.many import multiply
from tests.browser.scenario import ENDED, HOSTILE, Client, line
from tests.clients import SECONDS
from tests.e2e.stack import MODELS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WIDTHS = {"wide": {"width": 1440, "height": 900}, "narrow": {"width": 390, "height": 844}}
OPERATOR = ("batches", "models", "workers", "tenants", "keys", "dead-letters", "audit-log")
MANY_BATCHES, MANY_LINES = 10_000, 50_000
_SERIOUS = ("serious", "critical")
_MAX_PAGE_CHARACTERS = 200_000


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    with dev(BATCHWRIGHT_AUTH="api_key") as stack:
        yield stack


@pytest.fixture(scope="module")
def key(stack: Stack) -> str:
    return new_tenant(stack, "blue")


def new_tenant(stack: Stack, name: str) -> str:
    """Create a tenant. Return an API key that may do everything."""
    environment = {"BATCHWRIGHT_DATABASE_URL": stack.now.postgres}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "batchwright.starter", *arguments]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout.strip()

    run("tenants", "create", name)
    return run("keys", "create", name, "--scope", "read", "--scope", "write", "--scope", "admin")


@contextmanager
def api_client(stack: Stack, key: str) -> Generator[Client]:
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=stack.now.api, headers=headers, timeout=SECONDS, trust_env=False) as http:
        yield Client(http)


@pytest.fixture(scope="module")
def hostile_batch(stack: Stack, key: str) -> str:
    """An ended batch whose text tries to break out of the pages. One of its lines has failed."""
    with api_client(stack, key) as client:
        lines = [line(f"{HOSTILE}{number}"[:400], MODELS[0], HOSTILE) for number in range(3)]
        lines.append(line(f"fails {HOSTILE}", f"nobody-{HOSTILE}"[:100], HOSTILE))
        metadata = {HOSTILE[:64]: HOSTILE[:512]}
        batch = client.create(lines, name=f"{HOSTILE[:200]}.jsonl", metadata=metadata)
        client.wait(batch, *ENDED)
        return batch


@pytest.fixture(scope="module")
def many_lines(stack: Stack, key: str) -> str:
    """An ended batch with 50,000 lines, among 10,000 copies of its row."""
    with api_client(stack, key) as client:
        batch = client.create([line("line-0", MODELS[0], "question 0")], metadata={"copied": "many"})
        client.wait(batch, *ENDED)
    with ThreadPoolExecutor() as pool:  # Playwright runs an event loop in this thread
        pool.submit(asyncio.run, multiply(stack, batch, MANY_LINES, MANY_BATCHES)).result()
    return batch


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(params=WIDTHS)
def page(request: pytest.FixtureRequest, browser: Browser, stack: Stack, key: str) -> Generator[Page]:
    """A page of a visitor who has signed in. Anything that the browser reports as an error fails the test."""
    context = browser.new_context(
        base_url=stack.now.api,
        viewport=WIDTHS[request.param],  # pyright: ignore[reportArgumentType]
        color_scheme="dark" if request.param == "narrow" else "light",
    )
    context.add_init_script(axe())
    problems: list[str] = []

    def report(message: ConsoleMessage) -> None:
        # A page with an error status is reported, too. It is wanted.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            problems.append(message.text)

    context.on("console", report)
    context.on("weberror", lambda error: problems.append(str(error.error)))
    page = context.new_page()
    sign_in(page, key)
    yield page
    context.close()
    assert problems == []


def sign_in(page: Page, key: str) -> None:
    page.goto("/ui")
    page.get_by_label("API key").fill(key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Batches")).to_be_visible()


def check(page: Page) -> None:
    """Check that a page has no serious barrier, fits the browser window, and has no user's text as markup."""
    page.wait_for_load_state()  # after a click, the document may still be empty
    found = page.evaluate("() => axe.run()")
    serious = [
        (violation["id"], [node["html"][:200] for node in violation["nodes"]])
        for violation in found["violations"]
        if violation["impact"] in _SERIOUS
    ]
    assert serious == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth"), page.url
    assert "broken" not in page.title()
    assert page.locator("main script").count() == 0


def test_a_person_goes_from_an_empty_page_to_the_downloaded_results(
    page: Page, stack: Stack, tmp_path: Path
) -> None:
    page.get_by_role("button", name="Sign out").click()
    sign_in(page, new_tenant(stack, f"new-{time.time_ns()}"))
    expect(page.get_by_text("No batch matches")).to_be_visible()
    file = tmp_path / "requests.jsonl"
    lines = [line(f"line-{number}", MODELS[number % 2], f"question {number}") for number in range(20)]
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    page.get_by_role("link", name="Create one").click()
    check(page)
    page.get_by_label("JSONL file").set_input_files(file)
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("heading", name="Estimate")).to_be_visible()
    check(page)
    page.get_by_label("Completion window").fill("1h")
    page.get_by_label("Metadata").fill("from=a person")
    page.get_by_role("button", name="Submit the batch").click()
    expect(page.get_by_text("completed", exact=True).first).to_be_visible(timeout=60_000)  # without a reload
    expect(page.get_by_role("link", name="Output")).to_be_visible()
    expect(page.locator(".actions summary")).to_have_text("Delete")  # and no longer "Cancel"
    check(page)
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Output").click()
    results = [json.loads(each) for each in downloading.value.path().read_text().splitlines()]
    assert [each["custom_id"] for each in results] == [f"line-{number}" for number in range(20)]
    page.get_by_label("custom_id").fill("line-7")
    page.keyboard.press("Enter")
    expect(page.get_by_text("question 7")).to_be_visible()


def test_a_dropped_file_is_uploaded_and_its_problems_are_shown(page: Page, tmp_path: Path) -> None:
    lines = [line(f"line-{number}", MODELS[0], "hello") for number in range(3)]
    lines[1] |= {"method": HOSTILE}
    file = tmp_path / "requests.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    page.goto("/ui/new")
    drop(page, page.get_by_label("JSONL file"), file)
    expect(page.get_by_text("Its lines are checked as they arrive")).to_be_visible()
    check(page)
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("heading", name="Submit")).to_be_visible()
    expect(page.get_by_text("Line 2:")).to_be_visible()
    check(page)


# Reports what the page says of an upload. While a form is sent, Playwright waits for the next page, so the
# test listens to the console, and presses the button through the browser's own protocol.
_REPORT = """addEventListener("htmx:sse:after:message", event => {
    console.info("upload: " + event.target.innerText);
})"""


@pytest.mark.parametrize("page", ["wide"], indirect=True)
def test_problems_are_shown_while_the_file_is_still_being_uploaded(
    page: Page, stack: Stack, tmp_path: Path
) -> None:
    lines = [line(f"line-{number}", MODELS[0], "x" * 500) for number in range(1000)]
    lines[1] |= {"method": "GET"}
    lines[998] |= {"method": "GET"}
    file = tmp_path / "requests.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    page.add_init_script(_REPORT)
    with holding_proxy(stack.now.api, file.stat().st_size // 2) as proxy:
        page.goto(proxy.url + "/ui/new")
        page.get_by_label("JSONL file").set_input_files(file)
        expect(page.get_by_text("Its lines are checked as they arrive")).to_be_visible()
        page.get_by_role("button", name="Upload").focus()
        protocol = page.context.new_cdp_session(page)
        with page.expect_console_message(lambda message: "Line 2:" in message.text) as report:
            for kind in ("keyDown", "keyUp"):
                key = {"type": kind, "key": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
                protocol.send("Input.dispatchKeyEvent", key)  # pyright: ignore[reportUnknownMemberType]
        proxy.release()
        shown = report.value.text
        [checked] = re.findall(r"received, (\d+) lines checked, 1 with a problem", shown)
        assert 2 <= int(checked) < 999
        assert "Line 999:" not in shown
        expect(page.get_by_role("heading", name="Submit")).to_be_visible()
        expect(page.get_by_text("Line 999:")).to_be_visible()


# Chromium without a window never hides a tab, so the page is made to believe it.
_HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
_CONNECTED = "addEventListener('htmx:sse:after:connection', () => console.info('connected'))"


@pytest.mark.parametrize("page", ["wide"], indirect=True)
def test_a_page_in_a_hidden_tab_is_not_updated(page: Page) -> None:
    def is_connected(message: ConsoleMessage) -> bool:
        return message.text == "connected"

    page.add_init_script(_CONNECTED)
    with page.expect_console_message(is_connected):
        page.goto("/ui/batches")
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/ui/batches/events")):
        page.evaluate(_HIDE, True)
    with page.expect_console_message(is_connected):
        page.evaluate(_HIDE, False)


@pytest.mark.parametrize("page", ["narrow"], indirect=True)
def test_the_description_of_the_api_works_under_the_policy(page: Page) -> None:
    page.goto("/ui/batches")
    page.get_by_role("link", name="API", exact=True).click()
    operation = page.locator("details.line", has_text="/v1/batches/{batch_id}/cancel").first
    operation.locator("summary").click()
    operation.get_by_role("link", name="BatchObject").first.click()
    expect(page.locator("#BatchObject")).to_be_visible()  # the browser opens what the link leads to
    check(page)
    page.get_by_role("link", name="Batches", exact=True).click()
    expect(page.get_by_role("heading", name="Batches")).to_be_visible()  # still signed in


def drop(page: Page, target: Locator, file: Path) -> None:
    """Drop a file of this machine on an element, as a person does with the mouse."""
    box = target.bounding_box()
    assert box is not None
    at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
    protocol = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        event = {"type": kind, "data": data, **at}
        protocol.send("Input.dispatchDragEvent", event)  # pyright: ignore[reportUnknownMemberType]


def test_every_page_withstands_hostile_text_and_has_no_barrier(page: Page, hostile_batch: str) -> None:
    one = f"/ui/batches/{hostile_batch}"
    paths = ("", "/lines", "/lines?status=failed", "/webhooks")
    pages = (
        "/ui/batches",
        "/ui/files",
        "/ui/new",
        "/ui/limits",
        "/ui/batches/nothing",
        *(one + path for path in paths),
    )
    for path in (*pages, *(f"/ui/operator/{name}" for name in OPERATOR)):
        page.goto(path)
        for summary in page.locator("details > summary").all()[:5]:
            summary.click()
        check(page)


def test_an_admin_creates_and_revokes_a_key(page: Page) -> None:
    page.goto("/ui/operator/keys")
    label = HOSTILE.replace("\u202e", "")[: 100 + len(page.viewport_size or {})] + str(time.time_ns())
    form = page.locator("form.stack")
    form.get_by_label("Tenant").fill("blue")
    form.get_by_label("Label").fill(label)
    form.get_by_role("button", name="Create the key").click()
    expect(page.get_by_role("status")).to_contain_text("It is not shown again")
    secret = page.locator("[role=status] pre").inner_text()
    check(page)
    page.goto("/ui/operator/keys?tenant=blue")
    assert secret not in page.content()
    row = page.locator("tr", has_text=label)
    row.get_by_text("Revoke", exact=True).click()
    row.get_by_role("button", name="Revoke for good").click()
    expect(row).to_contain_text("revoked")


def tab_to(page: Page, target: Locator) -> None:
    """Press the Tab key until `target` has the focus."""
    for _ in range(100):
        page.keyboard.press("Tab")
        if target.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"the Tab key does not reach {target}")


@pytest.mark.parametrize("page", ["wide"], indirect=True)
def test_the_keyboard_alone_finds_and_controls_a_batch(page: Page, stack: Stack, key: str) -> None:
    with api_client(stack, key) as client:
        later = {"start_at": int(time.time()) + 3600}
        batch = client.create([line("a", MODELS[0], "hello")], x_batchwright=later)
    page.goto("/ui/batches")
    tab_to(page, page.locator(f"#rows a[href='/ui/batches/{batch}']"))
    page.keyboard.press("Enter")
    for name, then in (("Pause", "Resume"), ("Resume", "Pause")):
        tab_to(page, page.get_by_role("button", name=name))
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name=then)).to_be_visible()
    tab_to(page, page.locator("summary", has_text="Priority"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_label("1 to 5"))
    page.keyboard.type("5")
    page.keyboard.press("Enter")
    expect(page.locator("dl.facts")).to_contain_text("Priority 5", use_inner_text=True)
    tab_to(page, page.locator("summary", has_text="Cancel"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("button", name="Cancel the batch"))
    page.keyboard.press("Enter")
    expect(page.get_by_text("cancelled", exact=True).first).to_be_visible(timeout=60_000)


@pytest.mark.parametrize("page", ["wide"], indirect=True)
def test_pages_stay_small_with_many_batches_and_lines(page: Page, stack: Stack, many_lines: str) -> None:
    page.goto("/ui/batches")
    expect(page.locator("#rows tbody tr")).to_have_count(25)
    page.get_by_role("link", name="Older ones").click()
    page.get_by_role("link", name="Older ones").click()
    expect(page.locator("#rows tbody tr")).to_have_count(25)
    check(page)
    page.get_by_label("Status").select_option("completed")
    page.get_by_label("Metadata key").fill("copied")
    page.get_by_label("and value").fill("many")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#rows tbody tr")).to_have_count(25)
    assert len(page.content()) < _MAX_PAGE_CHARACTERS
    page.goto("/ui/operator/batches")
    expect(page.locator("tbody tr")).to_have_count(50)
    assert len(page.content()) < _MAX_PAGE_CHARACTERS
    page.goto(f"/ui/batches/{many_lines}")
    expect(page.get_by_text(f"{MANY_LINES:,} of {MANY_LINES:,} lines")).to_be_visible()
    page.get_by_role("link", name="Completed lines").click()
    expect(page.locator("details.line")).to_have_count(20)
    assert len(page.content()) < _MAX_PAGE_CHARACTERS
    page.get_by_label("custom_id").fill(f"line-{MANY_LINES - 1}")
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"question {MANY_LINES - 1}")).to_be_visible()
    check(page)


def test_a_list_follows_its_batches(page: Page, stack: Stack, key: str) -> None:
    with api_client(stack, key) as client:
        batch = client.create([line("a", MODELS[0], "hello")])
    row = page.locator(f"#row-{batch}")
    expect(row).to_contain_text("completed", timeout=60_000)  # without a reload


def test_without_javascript_a_batch_is_retried_and_deleted(
    browser: Browser, stack: Stack, key: str, hostile_batch: str
) -> None:
    context = browser.new_context(base_url=stack.now.api, java_script_enabled=False)
    page = context.new_page()
    sign_in(page, key)
    page.goto(f"/ui/batches/{hostile_batch}")
    page.get_by_role("button", name="Retry failed lines").click()
    retried = page.url
    assert not retried.endswith(hostile_batch)
    expect(page.get_by_text("Retry of")).to_be_visible()
    while page.get_by_text("Delete", exact=True).count() == 0:
        page.goto(retried)
    page.get_by_text("Delete", exact=True).click()
    page.get_by_role("button", name="Delete the batch").click()
    expect(page.get_by_role("heading", name="Batches")).to_be_visible()
    expect(page.locator(f"a[href$='{retried.rpartition('/')[2]}']")).to_have_count(0)
    page.get_by_role("button", name="Sign out").click()
    page.goto("/ui/files")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    context.close()
