"""Backends with jobs that fail. Each fails in one way, and is named as in the reference of outcomes.

A job is a request whose result is not in the response: the worker polls for it, or the backend calls back.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from batchwright.simulator.exchange import HttpExchange, HttpResponse
from tests.clients import http_client
from tests.fakes.hostile_backends import LIMIT

TAKEN = HttpResponse(202, b'{"status":"running","job_id":"j"}')
HTML = HttpResponse(200, b"<html>no</html>")


def job_report(**body: object) -> HttpResponse:
    return HttpResponse(200, json.dumps(body).encode())


@dataclass
class BadJob:
    """A backend with one job that fails.

    Attributes:
        ends: expected error code of the line; empty if it succeeds.
        taken: response to the request that starts the job.
        polls: returns the response to a poll. Its argument is the number of earlier polls.
        call: body of the callback, which is sent once; None for a job that is polled.
    """

    ends: str  # the code of its line; empty: it is answered
    taken: HttpResponse = field(default_factory=lambda: TAKEN)
    polls: Callable[[int], HttpResponse] = lambda _: job_report(status="running")
    call: object = None
    seen: int = 0
    calls: set["asyncio.Task[httpx.Response]"] = field(default_factory=set["asyncio.Task[httpx.Response]"])

    @property
    def config(self) -> dict[str, object]:
        """The model's configuration in the registry, without its backends."""
        if self.call is not None:
            return {"kind": "callback", "jobs": {"max_poll_time": "60s"}}
        jobs = {"poll_endpoint_template": "/status/{id}", "poll_interval": "100ms", "max_poll_time": "60s"}
        return {"kind": "poll", "jobs": {**jobs, **({"max_poll_time": "2s"} if self.is_endless else {})}}

    @property
    def is_endless(self) -> bool:
        return self.ends == "request_timeout"

    def __call__(self, exchange: HttpExchange) -> None:
        request = exchange.request
        if request.path.startswith("/status/"):
            self.seen += 1
            return exchange.respond(self.polls(self.seen - 1))
        exchange.respond(self.taken if request.method == "POST" else HttpResponse(404, b"{}"))
        if url := request.header(b"x-callback-url"):
            self.calls.add(asyncio.create_task(_call(url, self.call)))


async def _call(url: str, body: object) -> httpx.Response:
    async with http_client() as http:
        return await http.post(url, json=body)


BAD_JOBS = {
    "taken-without-an-id": BadJob("invalid_response", taken=HttpResponse(202, b'{"status":"running"}')),
    "taken-with-a-page": BadJob("invalid_response", taken=HTML),
    "not-known": BadJob("job_lost", polls=lambda _: HttpResponse(404, b"{}")),
    "failed": BadJob(
        "job_failed", polls=lambda _: job_report(status="failed", error={"message": "no memory"})
    ),
    "a-list": BadJob("invalid_response", polls=lambda _: job_report(status="completed", result=[1])),
    "too-large": BadJob(
        "response_too_large", polls=lambda _: job_report(status="completed", result={"text": "x" * 2 * LIMIT})
    ),
    "a-page-for-a-while": BadJob(
        "", polls=lambda n: HTML if n < 4 else job_report(status="completed", result={"ok": True})
    ),
    "never-ends": BadJob("request_timeout", polls=lambda _: HttpResponse(200, b"")),
    "calls-with-a-list": BadJob("invalid_response", call=[1]),
    "calls-before-the-end": BadJob("invalid_response", call={"status": "running"}),
    "calls-with-an-error": BadJob("job_failed", call={"status": "failed", "error": "no memory"}),
}
