"""Take the screenshots of the documentation: `python -m tests.browser.screenshots [FOLDER]`."""

import sys
from pathlib import Path

import httpx
from playwright.sync_api import Browser

from tests.browser.chromium import chromium
from tests.browser.scenario import ENDED, Client, line
from tests.e2e.stack import MODELS, dev

_FOLDER = Path(__file__).parents[2] / "docs" / "how-to" / "images"
_TOPICS = ("tide", "frost", "echo", "rain", "light", "sand")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with dev() as stack, httpx.Client(base_url=stack.now.api, trust_env=False) as http, chromium() as browser:
        client = Client(http)
        simulator = httpx.Client(base_url=stack.simulator, trust_env=False)
        lines = [
            line(f"{topic}-{number}", MODELS[number % 3], f"What is {topic}? ({number})")
            for number in range(40)
            for topic in _TOPICS
        ]
        bad = [line(f"unknown-{number}", "nobody-serves-this", "hello") for number in range(5)]
        ended = client.create(lines + bad, metadata={"team": "search", "run": "nightly"})
        client.wait(ended, *ENDED)
        for fault in ({"kind": "slow", "seconds": 2}, {"kind": "503", "model": MODELS[2]}):
            simulator.post("/admin/faults", json=fault).raise_for_status()
        running = client.create(lines, metadata={"team": "evaluation"})
        client.wait(running, "in_progress", *ENDED)
        pages = stack.now.api + "/ui/batches"
        _take(browser, pages, folder / "ui-batches.png")
        _take(browser, f"{pages}/{ended}", folder / "ui-batch.png")
        _take(browser, f"{pages}/{ended}/lines?custom_id=tide-3", folder / "ui-lines.png")
        _take(browser, f"{pages}/{running}", folder / "ui-batch-phone.png", width=390, scheme="dark")


def _take(browser: Browser, url: str, file: Path, *, width: int = 1440, scheme: str = "light") -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    page.goto(url)
    page.screenshot(path=file, full_page=True)
    page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else _FOLDER)
