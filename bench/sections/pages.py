"""Section of the benchmark: the pages at `/ui`. It measures the time until a page is received, and the CPU
time of the API for open tabs.
"""

import asyncio
import time
from statistics import median

import httpx

from batchwright.starter.client import Client
from bench import batches
from bench.event_listeners import share_of_a_core
from bench.inputs import write_input
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import RunningStack, running_stack, simulator, wait_until_quiet

_IN_FLIGHT, _LATENCY_MS = 64, 200
_BATCHES, _LINES, _RUNNING_LINES = 40, 50, 20_000  # the last one runs for about a minute
_TABS, _SECONDS, _TIMES = 200, 6.0, 20
_OPERATOR = ("batches", "models", "workers", "tenants", "keys", "dead-letters", "audit-log")


def measure(options: SectionOptions) -> list[Figure]:
    path, long = options.folder / "pages.jsonl", options.folder / "running.jsonl"
    write_input(path, _LINES)
    write_input(long, _RUNNING_LINES)
    seconds = 2.0 if options.quick else _SECONDS
    with (
        simulator("--latency-ms", str(_LATENCY_MS)) as backend,
        running_stack(options.folder / "pages", backend.url, in_flight=_IN_FLIGHT) as stack,
        Client(stack.api) as client,
        httpx.Client(base_url=stack.api, trust_env=False, timeout=60) as browser,
    ):
        file_id = batches.upload(client, path)
        ended = [batches.create(client, file_id) for _ in range(options.size(_BATCHES, 4))]
        for batch in ended:
            while not client.batch(batch.id).status.is_terminal:
                time.sleep(0.1)
        wait_until_quiet(stack)
        slowest, took = "", 0.0
        for name, page in _pages(ended[0].id, file_id).items():
            found = _seconds_of(browser, page)
            options.report(f"{name}: {1000 * found:.1f} ms")
            slowest, took = max((slowest, took), (name, found), key=lambda each: each[1])
        page = Figure("pages.page_ms", f"the slowest page, {slowest}", [1000 * took], "ms", Target(50))
        cookies, several = browser.cookies, "/ui/batches/events"
        idle = asyncio.run(_share_of_tabs(stack, cookies, several, seconds))
        running = batches.create(client, batches.upload(client, long))
        while not client.batch(running.id).request_counts.settled:
            time.sleep(0.1)
        live = asyncio.run(_share_of_tabs(stack, cookies, several, seconds))
        one = asyncio.run(_share_of_tabs(stack, cookies, f"/ui/batches/{running.id}/events", seconds))
        if client.cancel(running.id).status.is_terminal:
            raise SystemExit(f"{running.id} ended before the measurement did.")
    return [
        page,
        _figure("idle_lists", "lists in which nothing changes", idle),
        _figure("lists", "lists with a running batch", live),
        _figure("batches", "the page of a running batch", one),
    ]


def _figure(key: str, what: str, share: float) -> Figure:
    return Figure(f"pages.{key}", f"a core's time for {_TABS} tabs of {what}", [share], "%", Target(5.0))


def _pages(batch_id: str, file_id: str) -> dict[str, str]:
    one = f"/ui/batches/{batch_id}"
    return {
        **{"batches": "/ui/batches", "files": "/ui/files", "limits": "/ui/limits", "API": "/docs"},
        **{"a batch": one, "its lines": f"{one}/lines", "its webhooks": f"{one}/webhooks"},
        **{"new batch": "/ui/new", "estimate": f"/ui/new?file={file_id}"},
        **{f"operator's {name}": f"/ui/operator/{name}" for name in _OPERATOR},
    }


def _seconds_of(browser: httpx.Client, page: str) -> float:
    """Return the median time until `browser` has received the page, in seconds."""
    found: list[float] = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        browser.get(page).raise_for_status()
        found.append(time.perf_counter() - began)
    return median(found)


async def _share_of_tabs(stack: RunningStack, cookies: httpx.Cookies, url: str, seconds: float) -> float:
    """Return the CPU time that the API uses for open tabs of one browser, in per cent of a core.

    The CPU time without tabs is subtracted. The opening of the tabs is not measured.
    """
    alone = await asyncio.to_thread(share_of_a_core, stack, seconds)
    began = [asyncio.Event() for _ in range(_TABS)]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=stack.api, cookies=cookies, trust_env=False, timeout=None, limits=limits
    ) as client:

        async def tab(has_begun: asyncio.Event) -> None:
            async with client.stream("GET", url) as response:
                response.raise_for_status()
                async for _ in response.aiter_raw():
                    has_begun.set()
            raise SystemExit(f"The API ended the stream {url}.")

        async with asyncio.TaskGroup() as group:
            tabs = [group.create_task(tab(has_begun)) for has_begun in began]
            await asyncio.gather(*(has_begun.wait() for has_begun in began))
            beside = await asyncio.to_thread(share_of_a_core, stack, seconds)
            for each in tabs:
                each.cancel()
    return max(beside - alone, 0.0)


SECTION = Section(
    "pages",
    "Pages for browsers",
    f"{_BATCHES} batches of {_LINES} lines; each page {_TIMES} times on loopback, at the median. Then the "
    f"CPU time of the API while one browser has {_TABS} tabs open, less its time without them: lists of "
    "batches, while nothing changes and while a batch runs, and the page of that batch.",
    1.2,
    measure,
    on_the_page=False,
)
