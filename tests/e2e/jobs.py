"""Fake backends that run jobs, for tests of the whole stack.

A job is a request whose result is not in the response: the worker polls for it, or the backend calls back.
"""

import json
from collections import Counter
from typing import Literal

import httpx

from batchwright.simulator.exchange import HttpExchange, HttpResponse
from tests.clients import http_client
from tests.e2e.batches import until
from tests.e2e.stack import Stack

Kind = Literal["sync", "poll", "callback"]


async def register(stack: Stack, model: str, config: dict[str, object]) -> None:
    """Register `model` with the API, and wait until the API lists it as served."""
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
    job_config = {
        "poll_interval": 0.25,
        **({"poll_endpoint_template": "/status/{id}"} if kind == "poll" else {}),
    }
    return {"backends": backends, "kind": kind, "jobs": {**job_config, **jobs}}


class CallbackBackend:
    """A backend that accepts jobs and never calls back. The test calls back with the URLs in `urls`."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.urls: list[str] = []

    def __call__(self, exchange: HttpExchange) -> None:
        request = exchange.request
        if request.method == "GET":
            models = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
            return exchange.respond(HttpResponse(200, json.dumps(models).encode()))
        self.urls.append(request.header(b"x-callback-url") or "")
        exchange.respond(HttpResponse(202, b"taken"))


async def call(url: str, body: object) -> httpx.Response:
    async with http_client() as http:
        return await http.post(url, json=body)


class Patient:
    """A backend whose jobs run until a test sets `ends` to True.

    Attributes:
        keys: idempotency keys of the accepted jobs.
        given_up: ids of the cancelled jobs.
        polls: number of polls by job id.
    """

    def __init__(self, model: str) -> None:
        self.model, self.ends = model, False
        self.keys: list[str] = []
        self.given_up: list[str] = []
        self.polls: Counter[str] = Counter()

    def __call__(self, exchange: HttpExchange) -> None:
        request = exchange.request
        if request.path.startswith("/status/"):
            self.polls[request.path.removeprefix("/status/")] += 1
            job_report = (
                {"status": "completed", "result": {"mine": True}} if self.ends else {"status": "running"}
            )
            return exchange.respond(HttpResponse(200, json.dumps(job_report).encode()))
        if request.path.startswith("/cancel/"):
            self.given_up.append(request.path.removeprefix("/cancel/"))
            return exchange.respond(HttpResponse(200, b"{}"))
        if request.method == "GET":
            models = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
            return exchange.respond(HttpResponse(200, json.dumps(models).encode()))
        self.keys.append(request.header(b"idempotency-key") or "")
        exchange.respond(
            HttpResponse(202, json.dumps({"status": "running", "job_id": f"j{len(self.keys)}"}).encode())
        )
