"""HTTP endpoints below /jobs to submit, poll and cancel jobs. A callback reports the end of a job.

A job is a request whose response is stored, so that the client can fetch it later.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from secrets import token_hex
from urllib.parse import urlsplit

import msgspec

from batchwright.simulator.call_parser import ENDPOINTS
from batchwright.simulator.exchange import (
    HttpExchange,
    HttpRequest,
    HttpResponse,
    error_detail,
    error_response,
)
from batchwright.simulator.ledger import Ledger

logger = logging.getLogger(__name__)
PREFIX = "/jobs"
FAILED = "x-simulator-failed"  # header of responses that make an accepted job fail
_MAX_JOBS = 50_000
_CALLBACK_ATTEMPTS = 5  # at most; sending ends when a response has a 2xx status
_CALLBACK_PAUSE_SECONDS = 0.5
_CALLBACK_TIMEOUT_SECONDS = 10.0


class _CallbackFields(msgspec.Struct):
    callback_url: str | None = None


class SimulatedJob(HttpExchange):
    """A job: a request whose response is stored, so that the client can fetch it later.

    The backend processes the request like any other HTTP request. If the backend rejects the job when
    it is submitted, `rejection` is the response to the submission. Otherwise `rejection` is None.
    """

    def __init__(self, request: HttpRequest, on_end: Callable[["SimulatedJob"], None]) -> None:
        self.id = f"job_{token_hex(8)}"
        self.on_disconnect: Callable[[], None] | None = None
        self.rejection: HttpResponse | None = None
        self.is_reset = self.is_accepted = self.is_forgotten = False
        self.status_body = b'{"status":"processing","job_id":"%s"}' % self.id.encode()
        self.is_over = False
        self._request, self._on_end = request, on_end

    @property
    def request(self) -> HttpRequest:
        return self._request

    def respond(self, response: HttpResponse) -> None:
        if response.status == 200:
            self._end(b"completed", b"result", response.body)
        elif self.is_accepted or response.headers.pop(FAILED, ""):
            detail = error_detail(response.status, f"The job failed with status {response.status}.")
            self._end(b"failed", b"error", msgspec.json.encode(detail))
        else:
            self.rejection = response

    def cut(self, response: HttpResponse) -> None:
        self.abort()

    def abort(self) -> None:
        self.is_reset = not self.is_accepted
        self.is_forgotten = self.is_over = True

    def cancel(self) -> None:
        if not self.is_over and self.on_disconnect is not None:
            self.on_disconnect()
            self._end(b"cancelled", b"error", b"null")

    def _end(self, status: bytes, name: bytes, value: bytes) -> None:
        self.status_body = b'{"status":"%s","job_id":"%s","%s":%s}' % (status, self.id.encode(), name, value)
        self.is_over = True
        self._on_end(self)


class JobEndpoints:
    """A handler of the requests below /jobs.

    It runs the request of each job on the simulated backend, by calling `handle_call`. A job is a request
    whose response is stored until the client fetches it.
    """

    def __init__(self, ledger: Ledger, handle_call: Callable[[HttpExchange], None]) -> None:
        self._ledger, self._handle_call = ledger, handle_call
        self._jobs: OrderedDict[str, SimulatedJob] = OrderedDict()
        self._by_key: dict[str, SimulatedJob] = {}
        self._calls: set[asyncio.Task[None]] = set()

    def handle(self, exchange: HttpExchange, path: str) -> bool:
        """Handle a request to submit, poll or cancel a job.

        Return True if the request was one of these. Otherwise do nothing, and return False.

        `path` is the path of the request without the prefix /jobs.
        """
        request = exchange.request
        match request.method, path.split("/"):
            case "POST", _ if path in ENDPOINTS:
                self._submit(exchange, path)
            case "GET", ["", "status", job_id]:
                self._ledger.jobs.polled += 1
                exchange.respond(self._status_response(job_id))
            case ("POST", ["", "cancel", job_id]) | ("DELETE", ["", "status", job_id]):
                job = self._jobs.get(job_id)
                if job is not None and not job.is_over:
                    self._ledger.jobs.cancelled += 1
                    job.cancel()
                exchange.respond(self._status_response(job_id))
            case _:
                return False
        return True

    def _submit(self, exchange: HttpExchange, path: str) -> None:
        request = exchange.request
        key = request.header(b"idempotency-key") or ""
        known = self._by_key.get(key)
        if known is not None:
            self._ledger.jobs.resubmitted += 1
            return exchange.respond(
                HttpResponse(202, b'{"status":"processing","job_id":"%s"}' % known.id.encode())
            )
        job = SimulatedJob(replace(request, path=path), self._on_end)
        self._handle_call(job)
        if job.is_reset:
            return exchange.abort()
        if job.rejection is not None:
            return exchange.respond(job.rejection)
        job.is_accepted = True
        self._store(job, key)
        exchange.respond(HttpResponse(202, b'{"status":"processing","job_id":"%s"}' % job.id.encode()))

    def _store(self, job: SimulatedJob, key: str) -> None:
        self._ledger.jobs.submitted += 1
        self._jobs[job.id] = job
        if key:
            self._by_key[key] = job
        if len(self._jobs) > _MAX_JOBS:
            _, oldest = self._jobs.popitem(last=False)
            self._by_key = {key: kept for key, kept in self._by_key.items() if kept is not oldest}

    def _status_response(self, job_id: str) -> HttpResponse:
        job = self._jobs.get(job_id)
        if job is None or job.is_forgotten:
            return error_response(404, "There is no such job.")
        return HttpResponse(200, job.status_body)

    def _on_end(self, job: SimulatedJob) -> None:
        url = _callback_url(job.request)
        if url:
            call = asyncio.get_running_loop().create_task(self._send_callback(url, job))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _send_callback(self, url: str, job: SimulatedJob) -> None:
        """Send the callback of a job. If it gets no response with a 2xx status, send the callback again.

        The function gives up after five attempts.
        """
        for _ in range(_CALLBACK_ATTEMPTS):
            try:
                async with asyncio.timeout(_CALLBACK_TIMEOUT_SECONDS):
                    status = await _post(url, job.status_body)
            except (OSError, TimeoutError, ValueError, IndexError):
                status = 0
            except Exception:  # no other code awaits this task
                logger.exception("a callback failed")
                return
            if 200 <= status < 300:
                self._ledger.jobs.callbacks_sent += 1
                return
            await asyncio.sleep(_CALLBACK_PAUSE_SECONDS)


def _callback_url(request: HttpRequest) -> str:
    """Return the callback URL from the header or the body of a request; "" if there is none."""
    try:
        inner = msgspec.json.decode(request.body, type=_CallbackFields).callback_url
    except msgspec.DecodeError:
        inner = None
    return request.header(b"x-callback-url") or inner or ""


async def _post(url: str, body: bytes) -> int:
    """Send an unencrypted HTTP POST request with `body`. Return the status of the response."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        line = await reader.readline()
        return int(line.split()[1])
    finally:
        writer.close()
