"""Requests that run as jobs below /jobs: taken at once, asked after, given up, told of by a call."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from secrets import token_hex
from urllib.parse import urlsplit

import msgspec

from simulator.calls import ENDPOINTS
from simulator.exchange import Answer, Exchange, Request
from simulator.ledger import Ledger

PREFIX = "/jobs"
FAILED = "x-simulator-failed"  # of answers by which a job fails, and is not refused
_MOST_JOBS = 50_000
_CALLS = 5  # of one job, until one is answered with 2xx
_PAUSE_SECONDS = 0.5
_CALL_SECONDS = 10.0


class _Fields(msgspec.Struct):
    callback_url: str | None = None


class Job(Exchange):
    """Stands where the client of a request stands: what it would have been answered is the job's end.

    What a backend answers before it has taken the job is told to whoever submits it.
    """

    def __init__(self, request: Request, ended: Callable[["Job"], None]) -> None:
        self.id = f"job_{token_hex(8)}"
        self.on_gone: Callable[[], None] | None = None
        self.refusal: Answer | None = None
        self.is_reset = self.is_taken = self.is_forgotten = False
        self.said = b'{"status":"processing","job_id":"%s"}' % self.id.encode()
        self.is_over = False
        self._request, self._ended = request, ended

    @property
    def request(self) -> Request:
        return self._request

    def answer(self, answer: Answer) -> None:
        if answer.status == 200:
            self._end(b"completed", b"result", answer.body)
        elif self.is_taken or answer.headers.pop(FAILED, ""):
            self._end(b"failed", b"error", msgspec.json.encode({"message": f"It failed: {answer.status}."}))
        else:
            self.refusal = answer

    def cut(self, answer: Answer) -> None:
        self.abort()

    def abort(self) -> None:
        self.is_reset = not self.is_taken
        self.is_forgotten = self.is_over = True

    def cancel(self) -> None:
        if not self.is_over and self.on_gone is not None:
            self.on_gone()
            self._end(b"cancelled", b"error", b"null")

    def _end(self, status: bytes, name: bytes, value: bytes) -> None:
        self.said = b'{"status":"%s","job_id":"%s","%s":%s}' % (status, self.id.encode(), name, value)
        self.is_over = True
        self._ended(self)


class Jobs:
    """`ask` is the backend's, of a request without the prefix."""

    def __init__(self, ledger: Ledger, ask: Callable[[Exchange], None]) -> None:
        self._ledger, self._ask = ledger, ask
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._by_key: dict[str, Job] = {}
        self._calls: set[asyncio.Task[None]] = set()

    def handle(self, exchange: Exchange, path: str) -> bool:
        """Whether it was about a job. `path` is the request's without the prefix."""
        request = exchange.request
        match request.method, path.split("/"):
            case "POST", _ if path in ENDPOINTS:
                self._submit(exchange, path)
            case "GET", ["", "status", job_id]:
                self._ledger.jobs.looked += 1
                exchange.answer(self._told(job_id))
            case ("POST", ["", "cancel", job_id]) | ("DELETE", ["", "status", job_id]):
                self._cancel(job_id)
                exchange.answer(self._told(job_id))
            case _:
                return False
        return True

    def _submit(self, exchange: Exchange, path: str) -> None:
        request = exchange.request
        key = request.header(b"idempotency-key") or ""
        known = self._by_key.get(key)
        if known is not None:
            self._ledger.jobs.repeated += 1
            return exchange.answer(Answer(202, b'{"status":"processing","job_id":"%s"}' % known.id.encode()))
        job = Job(replace(request, path=path), self._ended)
        self._ask(job)
        if job.is_reset:
            return exchange.abort()
        if job.refusal is not None:
            return exchange.answer(job.refusal)
        job.is_taken = True
        self._keep(job, key)
        exchange.answer(Answer(202, b'{"status":"processing","job_id":"%s"}' % job.id.encode()))

    def _keep(self, job: Job, key: str) -> None:
        self._ledger.jobs.submitted += 1
        self._jobs[job.id] = job
        if key:
            self._by_key[key] = job
        if len(self._jobs) > _MOST_JOBS:
            _, oldest = self._jobs.popitem(last=False)
            self._by_key = {key: kept for key, kept in self._by_key.items() if kept is not oldest}

    def _told(self, job_id: str) -> Answer:
        job = self._jobs.get(job_id)
        if job is None or job.is_forgotten:
            return Answer(404, b'{"error":{"message":"There is no such job."}}')
        return Answer(200, job.said)

    def _cancel(self, job_id: str) -> None:
        job = self._jobs.get(job_id)
        if job is not None and not job.is_over:
            self._ledger.jobs.cancelled += 1
            job.cancel()

    def _ended(self, job: Job) -> None:
        url = _callback_url(job.request)
        if url:
            call = asyncio.get_running_loop().create_task(self._call(url, job))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _call(self, url: str, job: Job) -> None:
        """Until it is taken, a few times."""
        for _ in range(_CALLS):
            try:
                async with asyncio.timeout(_CALL_SECONDS):
                    status = await _post(url, job.said)
            except (OSError, TimeoutError, ValueError, IndexError):
                status = 0
            if 200 <= status < 300:
                self._ledger.jobs.called_back += 1
                return
            await asyncio.sleep(_PAUSE_SECONDS)


def _callback_url(request: Request) -> str:
    """Of the header, or else of the body."""
    try:
        inner = msgspec.json.decode(request.body, type=_Fields).callback_url
    except msgspec.DecodeError:
        inner = None
    return request.header(b"x-callback-url") or inner or ""


async def _post(url: str, body: bytes) -> int:
    """The status of the answer. Plain HTTP only."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        line = await reader.readline()
        return int(line.split()[1])
    finally:
        writer.close()
