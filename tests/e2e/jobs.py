"""Backends that run jobs, as the tests of whole stacks have them: at their word, or at the test's."""

import json
from collections import Counter
from typing import Literal

import httpx

from simulator.exchange import Answer, Exchange
from tests.clients import http_client
from tests.e2e.batches import until
from tests.e2e.stack import Stack

Kind = Literal["sync", "poll", "callback"]


async def register(stack: Stack, model: str, config: dict[str, object]) -> None:
    """Served once this returns."""
    async with http_client() as http:
        (await http.put(f"{stack.now.api}/admin/models/{model}", json=config)).raise_for_status()

    async def is_served() -> bool:
        async with stack.client() as client:
            return model in {found.id async for found in client.models.list()}

    await until(is_served)


def config_of(kind: Kind, url: str, upstream: str = "", **jobs: object) -> dict[str, object]:
    backends = [{"url": url, "model": upstream}]
    if kind == "sync":
        return {"backends": backends}
    told = {"poll_interval": 0.25, **({"poll_endpoint_template": "/status/{id}"} if kind == "poll" else {})}
    return {"backends": backends, "kind": kind, "jobs": {**told, **jobs}}


class Door:
    """A backend that takes jobs and leaves it to the test to call back: `urls` are those it was given."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.urls: list[str] = []

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.method == "GET":
            models = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
            return exchange.answer(Answer(200, json.dumps(models).encode()))
        self.urls.append(request.header(b"x-callback-url") or "")
        exchange.answer(Answer(202, b"taken"))


async def call(url: str, body: object) -> httpx.Response:
    async with http_client() as http:
        return await http.post(url, json=body)


class Patient:
    """A backend whose jobs go on until `ends`.

    `keys` are those of the jobs it took, `given_up` their ids, `looks` how often it was asked after each.
    """

    def __init__(self, model: str) -> None:
        self.model, self.ends = model, False
        self.keys: list[str] = []
        self.given_up: list[str] = []
        self.looks: Counter[str] = Counter()

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.path.startswith("/status/"):
            self.looks[request.path.removeprefix("/status/")] += 1
            said = {"status": "completed", "result": {"mine": True}} if self.ends else {"status": "running"}
            return exchange.answer(Answer(200, json.dumps(said).encode()))
        if request.path.startswith("/cancel/"):
            self.given_up.append(request.path.removeprefix("/cancel/"))
            return exchange.answer(Answer(200, b"{}"))
        if request.method == "GET":
            models = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
            return exchange.answer(Answer(200, json.dumps(models).encode()))
        self.keys.append(request.header(b"idempotency-key") or "")
        exchange.answer(
            Answer(202, json.dumps({"status": "running", "job_id": f"j{len(self.keys)}"}).encode())
        )
