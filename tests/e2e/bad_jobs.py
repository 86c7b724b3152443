"""Backends whose jobs go wrong, each in one way; by what the reference of jobs calls it."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from simulator.exchange import Answer, Exchange
from tests.clients import http_client
from tests.fakes.hostile import LIMIT

TAKEN = Answer(202, b'{"status":"running","job_id":"j"}')
HTML = Answer(200, b"<html>no</html>")


def told(**said: object) -> Answer:
    return Answer(200, json.dumps(said).encode())


@dataclass
class BadJob:
    """`looks` answers each look at the job, by how many there were before; `call` is sent back once."""

    ends: str  # the code of its line; empty: it is answered
    taken: Answer = field(default_factory=lambda: TAKEN)
    looks: Callable[[int], Answer] = lambda _: told(status="running")
    call: object = None
    seen: int = 0
    calls: set["asyncio.Task[httpx.Response]"] = field(default_factory=set["asyncio.Task[httpx.Response]"])

    @property
    def config(self) -> dict[str, object]:
        """Of the registry, without the backend."""
        if self.call is not None:
            return {"kind": "callback", "jobs": {"max_poll_time": "60s"}}
        jobs = {"poll_endpoint_template": "/status/{id}", "poll_interval": "100ms", "max_poll_time": "60s"}
        return {"kind": "poll", "jobs": {**jobs, **({"max_poll_time": "2s"} if self.is_endless else {})}}

    @property
    def is_endless(self) -> bool:
        return self.ends == "request_timeout"

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.path.startswith("/status/"):
            self.seen += 1
            return exchange.answer(self.looks(self.seen - 1))
        exchange.answer(self.taken if request.method == "POST" else Answer(404, b"{}"))
        if url := request.header(b"x-callback-url"):
            self.calls.add(asyncio.create_task(_call(url, self.call)))


async def _call(url: str, said: object) -> httpx.Response:
    async with http_client() as http:
        return await http.post(url, json=said)


BAD_JOBS = {
    "taken-without-an-id": BadJob("invalid_response", taken=Answer(202, b'{"status":"running"}')),
    "taken-with-a-page": BadJob("invalid_response", taken=HTML),
    "not-known": BadJob("job_lost", looks=lambda _: Answer(404, b"{}")),
    "failed": BadJob("job_failed", looks=lambda _: told(status="failed", error={"message": "no memory"})),
    "a-list": BadJob("invalid_response", looks=lambda _: told(status="completed", result=[1])),
    "too-large": BadJob(
        "response_too_large", looks=lambda _: told(status="completed", result={"text": "x" * 2 * LIMIT})
    ),
    "a-page-for-a-while": BadJob(
        "", looks=lambda n: HTML if n < 4 else told(status="completed", result={"ok": True})
    ),
    "never-ends": BadJob("request_timeout", looks=lambda _: Answer(200, b"")),
    "calls-with-a-list": BadJob("invalid_response", call=[1]),
    "calls-before-the-end": BadJob("invalid_response", call={"status": "running"}),
    "calls-with-an-error": BadJob("job_failed", call={"status": "failed", "error": "no memory"}),
}
