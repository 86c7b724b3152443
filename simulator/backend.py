"""The simulated backend: each request through authentication, ledger, faults, cache, latency, answer."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b

import msgspec

from simulator import admin, shapes
from simulator.answers import answer_to, spent_on
from simulator.cache import PrefixCache
from simulator.calls import ENDPOINTS, BadCall, Call, read_call
from simulator.exchange import Answer, Exchange
from simulator.faults import Fault, Faults, marked
from simulator.jobs import FAILED, PREFIX, Jobs
from simulator.latency import Latency
from simulator.ledger import Entry, Ledger


@dataclass(frozen=True, slots=True)
class Options:
    models: tuple[str, ...]
    latency: Latency = field(default_factory=Latency)
    model_latency: dict[str, Latency] = field(default_factory=dict[str, Latency])
    cache_tokens: int = 200_000
    output_tokens: int = 16
    dimensions: int = 8
    api_key: str = ""
    faults: tuple[Fault, ...] = ()
    keep_entries: bool = True


@dataclass(slots=True)
class _Asked:
    """A call on its way: what the ledger opened for it, and the timer it may be waiting for."""

    exchange: Exchange
    call: Call
    entry: Entry
    digest: bytes
    timer: asyncio.TimerHandle | None = None


def error_answer(status: int, message: str, *, param: str | None = None, code: str | None = None) -> Answer:
    kind = "server_error" if status >= 500 else "requests" if status == 429 else "invalid_request_error"
    return Answer(status, msgspec.json.encode(shapes.Error(shapes.ErrorDetail(message, kind, param, code))))


class Backend:
    """`handle` never blocks and never raises: what it cannot answer at once it answers by a timer."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.ledger = Ledger(keep_entries=options.keep_entries)
        self.faults = Faults(options.faults)
        self.jobs = Jobs(self.ledger, self._ask)
        self._caches = {model: PrefixCache(options.cache_tokens) for model in options.models}

    def handle(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.path.startswith("/admin/"):
            return exchange.answer(admin.answer(request, self.ledger, self.faults))
        if self.faults.whole_backend(("down",)):
            return exchange.abort()
        path = request.path.removeprefix(PREFIX)
        if path != request.path and self.jobs.handle(exchange, path):
            return None
        if request.method == "POST" and request.path in ENDPOINTS:
            return self._ask(exchange)
        exchange.answer(self._look(request.method, path, request.header(b"authorization")))

    def _look(self, method: str, path: str, authorization: str | None) -> Answer:
        if method != "GET":
            return error_answer(404, f"Invalid URL ({method} {path})")
        if path in ("/healthz", "/health"):
            return Answer(200, b'{"status":"ok"}')
        if self._refused(authorization):
            return _unauthorized()
        models = [shapes.Model(model) for model in self.options.models]
        if path == "/v1/models":
            return Answer(200, msgspec.json.encode(shapes.Models(models)))
        for model in models:
            if path == f"/v1/models/{model.id}":
                return Answer(200, msgspec.json.encode(model))
        return error_answer(404, f"Invalid URL (GET {path})")

    def _refused(self, authorization: str | None) -> bool:
        return bool(self.options.api_key) and authorization != f"Bearer {self.options.api_key}"

    def _ask(self, exchange: Exchange) -> None:
        request = exchange.request
        if self._refused(request.header(b"authorization")):
            return exchange.answer(_unauthorized())
        digest = blake2b(request.body, digest_size=16).digest()
        try:
            call = read_call(request.path, request.body, self.options.models[0])
            key, trace = request.header(b"x-request-id") or digest.hex(), request.header(b"traceparent")
            entry = self.ledger.begin(key, call.model, digest.hex(), call.user, trace)
            asked = _Asked(exchange, call, entry, digest)
            exchange.on_gone = partial(self._gone, asked)
        except BadCall as error:
            return exchange.answer(error_answer(400, str(error), param=error.param, code=error.code))
        self._meet(asked)

    def _meet(self, asked: _Asked) -> None:
        """The fault that is waiting for this call, or the answer."""
        call, digest = asked.call, asked.digest
        try:
            fault = marked(call.marker, digest, asked.entry.asked)
        except ValueError as error:
            return self._end(asked, error_answer(400, f"The marker cannot be read: {error}", param="user"))
        fault = fault or self.faults.hitting(call.model, digest, asked.entry.asked)
        if call.model not in self._caches:
            message = f"The model `{call.model}` does not exist or you do not have access to it."
            return self._end(asked, error_answer(404, message, param="model", code="model_not_found"))
        if fault is None:
            return self._serve(asked, 0.0)
        self._fail(asked, fault)

    def _fail(self, asked: _Asked, fault: Fault) -> None:
        if fault.status is not None:
            code = "rate_limit_exceeded" if fault.status == 429 else None
            answer = error_answer(
                fault.status, f"The simulator was told to answer {fault.status}.", code=code
            )
            if fault.retry_after is not None:
                answer.headers["retry-after"] = f"{fault.retry_after:g}"
            return self._end(asked, answer)
        match fault.name:
            case "slow":
                self._serve(asked, fault.seconds or 1.0)
            case "hang":
                if fault.seconds is not None:
                    self._after(asked, fault.seconds, partial(self._abort, asked))
            case "down":
                self._abort(asked)
            case "fail":
                answer = error_answer(500, "The simulator was told to fail.")
                answer.headers[FAILED] = "1"  # a job is taken first
                self._end(asked, answer, status="fail")
            case "garbage":
                page = b"<html><body>502? The proxy was here.</body></html>"
                self._end(asked, Answer(200, page, {"content-type": "text/html"}), status="garbage")
            case _:
                self._serve(asked, 0.0, damage=fault.name)

    def _serve(self, asked: _Asked, delay: float, damage: str | None = None) -> None:
        call = asked.call
        cached = self._caches[call.model].cached_tokens(call.prompt)
        spent = spent_on(call, cached, self.options.output_tokens)
        try:
            body = answer_to(call, asked.digest, spent, self.options.dimensions)
        except BadCall as error:
            return self._end(asked, error_answer(400, str(error), param=error.param, code=error.code))
        totals = self.ledger.totals(call.model)
        totals.prompt_tokens += spent.prompt
        totals.cached_tokens += spent.cached
        totals.output_tokens += spent.output
        latency = self.options.model_latency.get(call.model, self.options.latency)
        delay += latency.seconds(uncached=spent.prompt - cached, output=spent.output, digest=asked.digest)
        answer = Answer(200, body, {"x-request-id": f"req_{asked.digest.hex()}"})
        finish = partial(self._finish, asked, answer, damage)
        if delay > 0:
            return self._after(asked, delay, finish)
        finish()

    def _finish(self, asked: _Asked, answer: Answer, damage: str | None) -> None:
        if damage == "cut":
            self.ledger.end(asked.entry, asked.call.model, "cut")
            return asked.exchange.cut(answer)
        if damage == "truncated":
            answer.body = answer.body[: len(answer.body) // 2]
        self._end(asked, answer, status=damage)

    def _end(self, asked: _Asked, answer: Answer, *, status: str | None = None) -> None:
        """In the ledger first: who has the answer may look there."""
        self.ledger.end(asked.entry, asked.call.model, status or str(answer.status))
        asked.exchange.answer(answer)

    def _abort(self, asked: _Asked) -> None:
        self.ledger.end(asked.entry, asked.call.model, "aborted")
        asked.exchange.abort()

    def _gone(self, asked: _Asked) -> None:
        if asked.timer is not None:
            asked.timer.cancel()
        self.ledger.end(asked.entry, asked.call.model, "gone")

    def _after(self, asked: _Asked, seconds: float, then: partial[None]) -> None:
        asked.timer = asyncio.get_running_loop().call_later(seconds, then)


def _unauthorized() -> Answer:
    return error_answer(401, "Incorrect API key provided.", code="invalid_api_key")
