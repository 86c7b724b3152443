"""The simulated backend. It checks, counts and answers requests. Delays and errors can be set."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b

import msgspec

from batchwright.simulator import admin
from batchwright.simulator.backend_jobs import FAILED, PREFIX, JobEndpoints
from batchwright.simulator.call_parser import ENDPOINTS, InferenceCall, InvalidCall, read_call
from batchwright.simulator.exchange import HttpExchange, HttpResponse, error_response, inference_error
from batchwright.simulator.faults import Fault, Faults, fault_from_marker
from batchwright.simulator.latency import Latency, random_factor
from batchwright.simulator.ledger import Ledger, LedgerEntry
from batchwright.simulator.prefix_cache import PrefixCache
from batchwright.simulator.responses import response_types
from batchwright.simulator.responses.event_streams import MEDIA_TYPE, as_events
from batchwright.simulator.responses.response_builder import build_response, response_cost
from batchwright.simulator.slots import Slots

DISPATCHER = "dispatcher"  # value of the header x-source of a dispatcher's requests


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    models: tuple[str, ...]
    latency: Latency = field(default_factory=Latency)
    model_latency: dict[str, Latency] = field(default_factory=dict[str, Latency])
    cache_tokens: int = 200_000
    output_tokens: int = 16
    output_jitter: float = 0.0
    dimensions: int = 8
    api_key: str = ""
    slots: int = 0  # number of requests that are processed at the same time; 0 for no limit
    direct_queue: int = 10  # number of direct callers that may wait for a slot
    faults: tuple[Fault, ...] = ()
    keep_entries: bool = True


@dataclass(slots=True, eq=False)
class _PendingCall:
    """A request that has no response yet, with its entry in the ledger (the record of all requests).

    `timer` is the timer that sends a delayed response; None if no timer is set. `is_disconnected` is True if
    the client has closed the connection.
    """

    exchange: HttpExchange
    call: InferenceCall
    entry: LedgerEntry
    digest: bytes
    timer: asyncio.TimerHandle | None = None
    is_disconnected: bool = False


class SimulatedBackend:
    """An imitation of an inference server. It responds to requests without running a model.

    `handle` does not block and raises no exception. If a response is delayed, a timer sends it.
    """

    def __init__(self, options: SimulatorOptions) -> None:
        self.options = options
        self.ledger = Ledger(keep_entries=options.keep_entries)
        self.faults = Faults(options.faults)
        self.jobs = JobEndpoints(self.ledger, self._handle_call)
        self._slots = Slots(options.slots, options.direct_queue) if options.slots else None
        self._caches = {model: PrefixCache(options.cache_tokens) for model in options.models}

    def handle(self, exchange: HttpExchange) -> None:
        request = exchange.request
        if request.path.startswith("/admin/"):
            return exchange.respond(admin.handle_admin(request, self.ledger, self.faults))
        if self.faults.is_backend_down():
            return exchange.abort()
        path = request.path.removeprefix(PREFIX)
        if path != request.path and self.jobs.handle(exchange, path):
            return None
        if request.method == "POST" and request.path in ENDPOINTS:
            return self._handle_call(exchange)
        exchange.respond(self._handle_get(request.method, path, request.header(b"authorization")))

    def _handle_get(self, method: str, path: str, authorization: str | None) -> HttpResponse:
        if method != "GET":
            return error_response(404, f"Invalid URL ({method} {path})")
        if path in ("/healthz", "/health"):
            return HttpResponse(200, b'{"status":"ok"}')
        if self._is_unauthorized(authorization):
            return _unauthorized()
        models = [response_types.SimulatedModel(model) for model in self.options.models]
        if path == "/v1/models":
            return HttpResponse(200, msgspec.json.encode(response_types.SimulatedModelList(models)))
        for model in models:
            if path == f"/v1/models/{model.id}":
                return HttpResponse(200, msgspec.json.encode(model))
        return error_response(404, f"Invalid URL (GET {path})")

    def _is_unauthorized(self, authorization: str | None) -> bool:
        return bool(self.options.api_key) and authorization != f"Bearer {self.options.api_key}"

    def _handle_call(self, exchange: HttpExchange) -> None:
        request = exchange.request
        if self._is_unauthorized(request.header(b"authorization")):
            return exchange.respond(_unauthorized(request.path))
        digest = blake2b(request.body, digest_size=16).digest()
        try:
            call = read_call(request.path, request.body, self.options.models[0])
            key, trace = request.header(b"x-request-id") or digest.hex(), request.header(b"traceparent")
            entry = self.ledger.begin(key, call.model, digest.hex(), call.user, trace)
            pending = _PendingCall(exchange, call, entry, digest)
            exchange.on_disconnect = partial(self._on_disconnect, pending)
        except InvalidCall as error:
            return exchange.respond(
                inference_error(request.path, 400, str(error), param=error.param, code=error.code)
            )
        if self._slots is None:
            return self._apply_fault(pending)
        is_dispatched = request.header(b"x-source") == DISPATCHER
        refusal = self._slots.enter(pending, partial(self._apply_fault, pending), is_dispatched=is_dispatched)
        if refusal:
            self._end(pending, inference_error(request.path, 503, refusal))

    def _apply_fault(self, pending: _PendingCall) -> None:
        """Cause the fault (such as an error or a delay) that matches this request.

        If no fault matches, respond normally.
        """
        call, digest = pending.call, pending.digest
        try:
            fault = fault_from_marker(call.marker, digest, pending.entry.requests)
        except ValueError as error:
            return self._end(
                pending,
                inference_error(call.endpoint, 400, f"The marker cannot be read: {error}", param="user"),
            )
        fault = fault or self.faults.fault_for(call.model, digest, pending.entry.requests)
        if call.model not in self._caches:
            message = f"The model `{call.model}` does not exist or you do not have access to it."
            error = inference_error(call.endpoint, 404, message, param="model", code="model_not_found")
            return self._end(pending, error)
        if fault is None:
            return self._serve(pending, 0.0)
        self._respond_with_fault(pending, fault)

    def _respond_with_fault(self, pending: _PendingCall, fault: Fault) -> None:
        if fault.status is not None:
            code = "rate_limit_exceeded" if fault.status == 429 else None
            message = f"A fault of the simulator returns {fault.status}."
            response = inference_error(pending.call.endpoint, fault.status, message, code=code)
            if fault.retry_after is not None:
                response.headers["retry-after"] = f"{fault.retry_after:g}"
            return self._end(pending, response)
        match fault.name:
            case "slow":
                self._serve(pending, fault.seconds or 1.0)
            case "hang":
                if fault.seconds is not None:
                    self._after(pending, fault.seconds, partial(self._abort, pending))
            case "hold":
                self.faults.call_at_end(fault, partial(self._serve_held, pending))
            case "down":
                self._abort(pending)
            case "fail":
                message = "A fault of the simulator makes this request fail."
                response = inference_error(pending.call.endpoint, 500, message)
                response.headers[FAILED] = "1"  # if the request is a job, it is accepted and fails later
                self._end(pending, response, status="fail")
            case "garbage":
                page = b"<html><body>502? The proxy was here.</body></html>"
                self._end(pending, HttpResponse(200, page, {"content-type": "text/html"}), status="garbage")
            case _:
                self._serve(pending, 0.0, damage=fault.name)

    def _serve_held(self, pending: _PendingCall) -> None:
        if not pending.is_disconnected:
            self._serve(pending, 0.0)

    def _serve(self, pending: _PendingCall, delay: float, damage: str | None = None) -> None:
        call = pending.call
        cached = self._caches[call.model].cached_tokens(call.prompt)
        length: float = self.options.output_tokens
        if self.options.output_jitter:  # not the bytes of the digest from which the latency is computed
            length *= random_factor(self.options.output_jitter, pending.digest[4:8])
        spent = response_cost(call, cached, round(length))
        try:
            body = build_response(call, pending.digest, spent, self.options.dimensions)
        except InvalidCall as error:
            refused = inference_error(call.endpoint, 400, str(error), param=error.param, code=error.code)
            return self._end(pending, refused)
        totals = self.ledger.totals(call.model)
        totals.prompt_tokens += spent.prompt
        totals.cached_tokens += spent.cached
        totals.output_tokens += spent.output
        latency = self.options.model_latency.get(call.model, self.options.latency)
        delay += latency.seconds(uncached=spent.prompt - cached, output=spent.output, digest=pending.digest)
        response = HttpResponse(200, body, {"x-request-id": f"req_{pending.digest.hex()}"})
        if call.body.stream:
            response.body, response.headers["content-type"] = as_events(call, body), MEDIA_TYPE
        finish = partial(self._finish, pending, response, damage)
        if delay > 0:
            return self._after(pending, delay, finish)
        finish()

    def _finish(self, pending: _PendingCall, response: HttpResponse, damage: str | None) -> None:
        if damage == "cut":
            self._leave(pending, "cut")
            return pending.exchange.cut(response)
        if damage == "truncated":
            response.body = response.body[: len(response.body) // 2]
        self._end(pending, response, status=damage)

    def _end(self, pending: _PendingCall, response: HttpResponse, *, status: str | None = None) -> None:
        """Record in the ledger (the record of all requests) that a request has ended, then send its response.

        `status` is a key of `LedgerEntry.statuses`, such as `garbage`; None for the status of `response`.
        """
        self._leave(pending, status or str(response.status))
        pending.exchange.respond(response)

    def _abort(self, pending: _PendingCall) -> None:
        self._leave(pending, "aborted")
        pending.exchange.abort()

    def _on_disconnect(self, pending: _PendingCall) -> None:
        pending.is_disconnected = True
        if pending.timer is not None:
            pending.timer.cancel()
        self._leave(pending, "disconnected")

    def _leave(self, pending: _PendingCall, status: str) -> None:
        self.ledger.end(pending.entry, pending.call.model, status)
        if self._slots is not None:
            self._slots.leave(pending)

    def _after(self, pending: _PendingCall, seconds: float, then: partial[None]) -> None:
        pending.timer = asyncio.get_running_loop().call_later(seconds, then)


def _unauthorized(path: str = "") -> HttpResponse:
    return inference_error(path, 401, "Incorrect API key provided.", code="invalid_api_key")
