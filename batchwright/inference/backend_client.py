"""HTTP client of one backend. It sends each request once, and classifies the response as an `Outcome`."""

import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol

import httpx
from msgspec.structs import replace

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.inference.backend_headers import BackendHeaders
from batchwright.inference.discovery import ListingFailed, ModelListing, list_models, read_slots
from batchwright.inference.request_outcome import Outcome, from_exception, invalid_response
from batchwright.inference.transport.base import (
    BackendRequest,
    BackendResponse,
    Exchange,
    Header,
    ResponseTooLarge,
    StreamedResponse,
    TargetUrl,
    Transport,
)
from batchwright.inference.transport.decoding import decode_content
from batchwright.rules.backends.response_checks import find_problem
from batchwright.rules.dispatch import retry_policy
from batchwright.rules.dispatch.retry_policy import Budget
from batchwright.rules.results.token_usage import tokens_of_plain_success
from batchwright.settings import Settings
from batchwright.telemetry import tracing

if TYPE_CHECKING:
    from batchwright.telemetry.spans import Spans

# Exceptions that `Transport.exchange` and decoding a response raise.
_EXCHANGE_ERRORS = (httpx.TransportError, httpx.DecodingError, TimeoutError, ResponseTooLarge)
_LOCATION = re.compile(r"(https?://[A-Za-z0-9.:\[\]_-]+)(?:/|$)")
_MAX_ID_BYTES = 256  # limit for the backend's request id, which every output line contains
_ResponseParser = Callable[[int, dict[bytes, bytes], bytes, bytes], Outcome]


class RequestSender(Protocol):
    def send(
        self, target: TargetUrl, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Awaitable[Outcome]:
        """Send one line once, and return its outcome. `InferenceClient.send` explains the parameters."""
        ...


class InferenceClient:
    """HTTP client of one backend. The client knows the backend's API key, headers and timeouts.

    The bodies of requests are sent unchanged.
    """

    def __init__(
        self,
        transport: Transport,
        settings: Settings,
        backend: BackendConfig | None = None,
        *,
        problem: str = "",
        of_batches: bool = True,
    ) -> None:
        """Create the client of one backend.

        Args:
            backend: the backend's configuration in the registry (the operator's list of models and backends);
                None to use only the settings of the process.
            problem: why the backend cannot be used; empty if it can be used. If it is not empty, every
                request fails with this text.
            of_batches: False if the process sends only interactive calls (requests outside of batches). The
                client's probes (small test requests) then have the same headers as interactive calls. If a
                backend prefers interactive calls, it also prefers these probes.
        """
        self._transport, self._secrets_dir = transport, settings.secrets_dir
        self.serves_direct_first = backend is not None and backend.send_dispatch_header
        # Without the adaptive limit, lines do not wait for a free slot, so they need a backoff.
        self._recognizes_busy = self.serves_direct_first and settings.adaptive_limits
        self._max_bytes = settings.max_response_bytes
        self._max_models = settings.max_listed_models
        self._timeout = (backend and backend.request_timeout) or settings.request_timeout_seconds
        self._first_byte = (backend and backend.first_byte_timeout) or 0.0
        self._idle = (backend and backend.idle_timeout) or 0.0
        self.of_batches = of_batches
        self._headers = BackendHeaders(settings, backend, of_batches=of_batches)
        self._initial_problem, self.problem = problem, ""
        self.reload_key()

    def set_transport(self, transport: Transport) -> None:
        """Use another transport for further requests, and read the backend's API key again.

        A transport holds the connections to the backend. The client becomes usable if the backend needs no
        API key, or if the client has read the key now or earlier.
        """
        self._transport = transport
        self._initial_problem = ""
        self.reload_key()

    def reload_key(self) -> None:
        """Read the backend's API key again.

        If the key cannot be read, the client continues to use the key that it read last. If it has never read
        a key, the client becomes unusable.
        """
        key_problem = self._headers.reload_key()
        self.problem = self._initial_problem or key_problem

    @property
    def has_key(self) -> bool:
        return self._headers.has_key

    @property
    def key_changes(self) -> int:
        """Number of times that a new API key was read."""
        return self._headers.key_changes

    def send(
        self, target: TargetUrl, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Coroutine[None, None, Outcome]:
        """Send `body` in a POST request and return the outcome.

        Failures of the backend or the network are outcomes, not exceptions. If the call is cancelled, its
        connection is closed.

        Args:
            request_id: id of the line, the same at each attempt.
            extra: headers of the batch that are forwarded to the backend.
        """
        return self._post(target, body, request_id, request_id, extra, parse_response)

    def try_send_now(
        self,
        target: TargetUrl,
        body: bytes,
        request_id: str,
        extra: Sequence[Header],
        on_outcome: Callable[[Outcome], None],
    ) -> Exchange | None:
        """Send a POST request if that is possible without awaiting. No trace span is created.

        If the request was sent, return its exchange. `Exchange.cancel` cancels the request. If nothing was
        sent, return None.

        Args:
            on_outcome: called once with the outcome when the request has ended. It must not raise. It is not
                called if nothing was sent.
        """
        if self.problem:
            return None
        request = self._build_request(target, body, request_id, request_id, extra)
        return self._transport.try_exchange_now(
            request,
            max_bytes=self._max_bytes,
            seconds=self._timeout,
            ended=partial(self._on_complete, on_outcome, body),
        )

    def stream(
        self, target: TargetUrl, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Return a context manager that sends a request and yields the response as it arrives.

        Use this for a request whose client waits for the response. Two kinds of headers mark requests of
        batches: the header that the setting `dispatch_header` names, and the backend's `batch_headers`. This
        request has none of these headers. The backend can therefore serve this request before the requests of
        batches.

        The exceptions of `Transport.stream` are raised later: when the `with` block begins, or while the
        caller reads the body.

        Args:
            request_id: id of the request.
            extra: headers of the caller that are forwarded.

        Raises:
            httpx.ConnectError: this process has no usable API key or certificate for the backend. No context
                manager is returned, and nothing is sent.
        """
        if self.problem:
            raise httpx.ConnectError(self.problem)
        headers = [
            (b"x-request-id", request_id.encode()),
            *self._headers.interactive,
            *self._headers.without_own(extra),
        ]
        request = BackendRequest(b"POST", target, headers, body, self._first_byte, self._idle)
        return self._transport.stream(request, max_bytes=self._max_bytes, seconds=self._timeout)

    async def submit_job(
        self, target: TargetUrl, body: bytes, request_id: str, key: str, extra: Sequence[Header]
    ) -> Outcome:
        """Send the request that starts a job, and return the request's outcome.

        A job is a request whose result the backend returns later. The response body is not checked. `key` is
        the idempotency key of the job.
        """
        return await self._post(target, body, request_id, key, extra, from_status)

    async def poll_job(
        self, method: bytes, target: TargetUrl, request_id: str, extra: Sequence[Header] = ()
    ) -> Outcome:
        """Send a request that polls or cancels a job, and return the request's outcome.

        A job is a request whose result the backend returns later. The response body is not parsed. Failures
        of the backend or the network are outcomes, not exceptions. `method` is the HTTP method.
        """
        if self.problem:
            return self._unusable_outcome()
        headers = [(b"x-request-id", request_id.encode()), *self._headers.without_own(extra)]
        body = b"{}" if method == b"POST" else b""
        request = BackendRequest(
            method, target, headers, body, self._first_byte, self._idle, self._headers.shared
        )
        return await self._exchange(request, from_status)

    def _post(
        self,
        target: TargetUrl,
        body: bytes,
        request_id: str,
        key: str,
        extra: Sequence[Header],
        read: _ResponseParser,
    ) -> Coroutine[None, None, Outcome]:
        if self.problem:
            return self._fail_unusable()
        request = self._build_request(target, body, request_id, key, extra)
        spans = tracing.spans()
        if spans is None:
            return self._exchange(request, read)
        return self._exchange_traced(spans, request, request_id, read)

    def _build_request(
        self, target: TargetUrl, body: bytes, request_id: str, key: str, extra: Sequence[Header]
    ) -> BackendRequest:
        headers = [(b"x-request-id", request_id.encode()), (b"idempotency-key", key.encode())]
        if extra:
            headers += self._headers.without_own(extra)
        return BackendRequest(
            b"POST", target, headers, body, self._first_byte, self._idle, self._headers.shared
        )

    async def _exchange_traced(
        self, spans: "Spans", request: BackendRequest, request_id: str, read: _ResponseParser
    ) -> Outcome:
        target = request.target
        with spans.request(target.path, target.origin.host, target.origin.port, request_id) as span:
            request.headers += span.headers
            outcome = await self._exchange(request, read)
            span.record_outcome(outcome.status, outcome.verdict.category, outcome.operator_message)
        return outcome

    async def _fail_unusable(self) -> Outcome:
        return self._unusable_outcome()

    def _unusable_outcome(self) -> Outcome:
        message = "The backend cannot be used: this worker has no usable API key or certificate for it."
        return Outcome(retry_policy.NOT_AUTHENTICATED, message=message, cause=self.problem)

    async def _exchange(self, request: BackendRequest, read: _ResponseParser) -> Outcome:
        try:
            response = await self._transport.exchange(
                request, max_bytes=self._max_bytes, seconds=self._timeout
            )
            body = decode_content(response, self._max_bytes)
            return self._recognize_busy(read(response.status, response.headers, body, request.body))
        except _EXCHANGE_ERRORS as error:
            return self.failure(error)

    def _on_complete(
        self, on_outcome: Callable[[Outcome], None], request: bytes, response: BackendResponse | Exception
    ) -> None:
        if isinstance(response, BackendResponse):
            try:
                is_encoded = b"content-encoding" in response.headers
                body = decode_content(response, self._max_bytes) if is_encoded else response.body
                outcome = self._recognize_busy(
                    parse_response(response.status, response.headers, body, request)
                )
            except _EXCHANGE_ERRORS as error:
                outcome = self.failure(error)
        else:
            outcome = self.failure(response)
        on_outcome(outcome)

    def _recognize_busy(self, outcome: Outcome) -> Outcome:
        """Return the outcome, with the verdict BUSY if the backend answered 503 because of other clients.

        Some backends serve other clients first (`serves_direct_first`). If such a backend answers 503, it is
        busy with the requests of other clients. In all other cases, the outcome stays unchanged. If
        BATCHWRIGHT_ADAPTIVE_LIMITS is false, every outcome stays unchanged.
        """
        if not self._recognizes_busy or outcome.verdict is not retry_policy.UNAVAILABLE:
            return outcome
        if outcome.status != 503:
            return outcome
        message = "The backend answered 503: direct callers use its slots."
        return replace(outcome, verdict=retry_policy.BUSY, message=message)

    def failure(self, error: Exception) -> Outcome:
        """Convert an exception of the transport to the outcome of the request."""
        return from_exception(error, seconds=self._timeout, max_bytes=self._max_bytes)

    async def listing(self, url: str) -> ModelListing:
        """Request the model list of the backend at `url`. Raise ListingFailed if this fails."""
        return await list_models(
            self._transport,
            url,
            self._headers.shared.headers,
            max_bytes=self._max_bytes,
            max_models=self._max_models,
        )

    async def slots(self, url: str) -> int | None:
        """Return how many requests a llama.cpp server processes in parallel (its number of slots).

        Other backends do not report such a number. The result is then None.
        """
        return await read_slots(self._transport, url, self._headers.shared.headers, max_bytes=self._max_bytes)

    async def models(self, url: str) -> list[str]:
        """Request the ids of the models that the backend at `url` lists.

        Raise ListingFailed if this fails.
        """
        return (await self.listing(url)).models

    async def is_reachable(self, url: str) -> bool:
        """Request the model list of the backend at `url`. Return True if it responds, even with an error."""
        try:
            await self.models(url)
        except ListingFailed as error:
            return not error.is_unreachable
        return True

    async def aclose(self) -> None:
        await self._transport.aclose()


def parse_response(status: int, headers: dict[bytes, bytes], body: bytes, request: bytes = b"") -> Outcome:
    """Convert a response to an outcome. If the body is not a valid result, the outcome is an error.

    `request` is the body of the request.
    """
    usage = tokens_of_plain_success(body) if status == 200 else None
    if usage is not None:
        return Outcome(retry_policy.SUCCESS, status, body, _request_id(headers), usage=usage)
    outcome = from_status(status, headers, body, request)
    if outcome.verdict is not retry_policy.SUCCESS or (problem := find_problem(status, body)) is None:
        return outcome
    if not problem.status:
        return invalid_response(problem.message, problem.detail)
    return from_status(problem.status, headers, body, request, problem.message)


def from_status(
    status: int, headers: dict[bytes, bytes], body: bytes, request: bytes = b"", message: str = ""
) -> Outcome:
    """Convert a response to an outcome by its status only. The body is not checked for a valid result.

    Args:
        body: body of the response.
        request: body of the request.
        message: the error message if the outcome is an error; empty for the default message.
    """
    if status < 100:
        return invalid_response(f"The backend answered with {status:03}, which is not an HTTP status.")
    verdict = retry_policy.classify_response(status, headers, body, request)
    if verdict.budget is Budget.SETTLED:
        return Outcome(verdict, status, body, _request_id(headers))
    cause = ""
    if 300 <= status < 400:
        message = f"The backend redirects ({status}), which is not followed."
        # Only the scheme and host of the target, because the rest may contain a secret.
        target = _LOCATION.match(headers.get(b"location", b"").decode("latin-1"))
        cause = f"to {target[1]}" if target else ""
    if verdict is retry_policy.UPSTREAM_UNREACHABLE:
        message = f"The backend answered {status}: it cannot reach its own upstream."
    message = message or f"The backend answered {status}."
    wait = retry_policy.retry_after_of(headers, datetime.now(UTC))
    return Outcome(
        verdict, status, body, _request_id(headers), message=message, retry_after=wait, cause=cause
    )


def _request_id(headers: dict[bytes, bytes]) -> str:
    found = headers.get(b"x-request-id") or headers.get(b"request-id")  # the second name is Anthropic's
    return "" if found is None else found[:_MAX_ID_BYTES].decode(errors="replace")
