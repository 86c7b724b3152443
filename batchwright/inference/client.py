"""One request to a backend: what was answered, or how it failed; no retry of its own (R9)."""

import re
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import httpx
from msgspec import Struct

from batchwright.contracts.errors import LineCode
from batchwright.contracts.registry import BackendConfig, GatewayConfig
from batchwright.inference.engine import AnswerTooLarge, Engine, Fixed, Header, Request, Target
from batchwright.inference.listing import Listing, ListingFailed, listed
from batchwright.inference.unpacking import unpacked
from batchwright.rules import retries
from batchwright.rules.retries import Budget, Verdict
from batchwright.rules.usable import problem_of
from batchwright.rules.usage import Tokens, tokens_if_plain
from batchwright.settings import Settings
from batchwright.settings.registry import SecretUnreadable, api_key
from batchwright.telemetry import tracing

if TYPE_CHECKING:
    from batchwright.telemetry.spans import Spans

_PLAIN: list[Header] = [
    (b"content-type", b"application/json"),
    (b"accept", b"application/json"),
    (b"accept-encoding", b"identity"),
]
_LOCATION = re.compile(r"(https?://[A-Za-z0-9.:\[\]_-]+)(?:/|$)")
# How httpx's own engine words a connection that ended: it has no class of its own for that.
_TORN = "peer closed connection"  # the answer had begun
_ENDED = ("Server disconnected", _TORN)


class Outcome(Struct, frozen=True):
    """`status` is 0 where no usable answer came; then `code` and `message` say what happened."""

    verdict: Verdict
    status: int = 0
    body: bytes = b""
    backend_request_id: str = ""
    code: LineCode = LineCode.CONNECTION_ERROR
    message: str = ""
    retry_after: float | None = None
    detail: str = ""  # the backend's own words: for the line, not for those who wait
    has_begun: bool = False  # a broken answer had
    usage: Tokens | None = None  # None: the body was not looked at for it

    @property
    def is_unanswered(self) -> bool:
        """Whether it was sent and nothing came back: what a backend that goes away looks like, too."""
        lost = self.verdict in (retries.ANSWER_BROKE, retries.NO_ANSWER_IN_TIME)
        return lost and not self.has_begun and not self.status and self.code is not LineCode.INVALID_RESPONSE


_Reads = Callable[[int, dict[bytes, bytes], bytes], Outcome]


class InferenceClient:
    """Sends bodies as they are, in the manner of one backend: its key, headers and patience."""

    def __init__(
        self, engine: Engine, settings: Settings, backend: BackendConfig | None = None, *, problem: str = ""
    ) -> None:
        """`problem` says why nothing can be asked; such a client refuses every request."""
        self._engine, self._secrets_dir = engine, settings.secrets_dir
        self._backend = backend
        self._limit = settings.max_response_bytes
        self._timeout = (backend and backend.request_timeout) or settings.request_timeout_seconds
        self._first_byte = (backend and backend.first_byte_timeout) or 0.0
        self._idle = (backend and backend.idle_timeout) or 0.0
        self._plain = [*_PLAIN, *_headers(settings, backend)]
        self._unusable, self.problem = problem, problem
        # A backend of the registry has the key it names, or none: ours is not shown to every address.
        listed = backend is None or (isinstance(backend, GatewayConfig) and settings.registry is None)
        self._key = settings.backend_api_key if listed else ""
        self._fixed = self._with_key()
        self.renew_key()

    def use(self, engine: Engine) -> None:
        """From now on; what it could not be asked for is over."""
        self._engine = engine
        self._unusable = self.problem = ""
        self.renew_key()

    def renew_key(self) -> None:
        """Reads the key where the registry says; one that cannot be read any more stays as it was."""
        backend = self._backend
        if backend is None or not (backend.api_key_name or backend.api_key_file or backend.api_key_env):
            return
        try:
            key = api_key(backend, self._secrets_dir)
        except SecretUnreadable as error:
            if not self._key:
                self.problem = self._unusable or str(error)
            return
        self.problem = self._unusable
        if key != self._key:
            self._key = key
            self._fixed = self._with_key()

    def _with_key(self) -> Fixed:
        key = [(b"authorization", b"Bearer " + self._key.encode())] if self._key else []
        return Fixed([*self._plain, *key])

    def send(
        self, target: Target, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Coroutine[None, None, Outcome]:
        """POSTs `body` to `target`; `request_id` is the line's own, equal on every attempt.

        `extra` headers are of the batch.

        Never raises for what a backend or the network does; a cancelled call closes its connection.
        """
        return self._post(target, body, request_id, request_id, extra, _outcome)

    async def submit(
        self, target: Target, body: bytes, request_id: str, key: str, extra: Sequence[Header] = ()
    ) -> Outcome:
        """The same of what starts a job: any body will do. `key` tells the jobs of a line apart."""
        return await self._post(target, body, request_id, key, extra, _as_it_is)

    async def look(
        self, method: bytes, target: Target, request_id: str, extra: Sequence[Header] = ()
    ) -> Outcome:
        """Asks after a job, or gives it up: what was answered as it is. Never raises, as `send`."""
        if self.problem:
            return self._no_key()
        headers = [(b"x-request-id", request_id.encode()), *self._passed(extra)]
        body = b"{}" if method == b"POST" else b""
        request = Request(method, target, headers, body, self._first_byte, self._idle, self._fixed)
        return await self._exchanged(request, _as_it_is)

    def _post(
        self,
        target: Target,
        body: bytes,
        request_id: str,
        key: str,
        extra: Sequence[Header],
        read: _Reads,
    ) -> Coroutine[None, None, Outcome]:
        if self.problem:
            return self._refused()
        headers = [(b"x-request-id", request_id.encode()), (b"idempotency-key", key.encode())]
        if extra:
            headers += self._passed(extra)
        request = Request(b"POST", target, headers, body, self._first_byte, self._idle, self._fixed)
        spans = tracing.spans()
        if spans is None:
            return self._exchanged(request, read)
        return self._traced(spans, request, request_id, read)

    async def _traced(self, spans: "Spans", request: Request, request_id: str, read: _Reads) -> Outcome:
        target = request.target
        with spans.request(target.path, target.origin.host, target.origin.port, request_id) as span:
            request.headers += span.headers
            outcome = await self._exchanged(request, read)
            span.answered(outcome.status, outcome.verdict.category, outcome.message)
        return outcome

    def _passed(self, extra: Sequence[Header]) -> list[Header]:
        """What the registry says of a header goes before what a batch does."""
        own = {name for name, _ in self._fixed.headers}
        return [header for header in extra if header[0] not in own]

    async def _refused(self) -> Outcome:
        return self._no_key()

    def _no_key(self) -> Outcome:
        return Outcome(retries.NO_KEY, message=f"The backend cannot be asked: {self.problem}.")

    async def _exchanged(self, request: Request, read: _Reads) -> Outcome:
        try:
            answer = await self._engine.exchange(request, most_bytes=self._limit, seconds=self._timeout)
            return read(answer.status, answer.headers, unpacked(answer, self._limit))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            return Outcome(retries.NOT_SENT, message=f"The backend could not be reached: {error}")
        except (httpx.TimeoutException, TimeoutError) as error:
            said = str(error) if type(error) is TimeoutError else ""
            message = said or f"The backend did not answer within {self._timeout:g} s."
            return Outcome(retries.NO_ANSWER_IN_TIME, code=LineCode.REQUEST_TIMEOUT, message=message)
        except httpx.TransportError as error:
            return _broken(error)
        except httpx.DecodingError as error:
            return unreadable(f"The answer cannot be unpacked: {error}")
        except AnswerTooLarge:
            message = f"The answer is larger than {self._limit} bytes."
            return Outcome(retries.TOO_LARGE, code=LineCode.RESPONSE_TOO_LARGE, message=message)

    @property
    def has_key(self) -> bool:
        return bool(self._key)

    async def listing(self, url: str) -> Listing:
        """What the backend at `url` tells of itself. Raises ListingFailed."""
        return await listed(self._engine, url, self._fixed.headers, most_bytes=self._limit)

    async def models(self, url: str) -> list[str]:
        """The ids it lists. Raises ListingFailed."""
        return (await self.listing(url)).models

    async def answers(self, url: str) -> bool:
        """Whether the backend at `url` answers anything at all; how is no matter."""
        try:
            await self.models(url)
        except ListingFailed as error:
            return not error.is_away
        return True

    async def aclose(self) -> None:
        await self._engine.aclose()


def _outcome(status: int, headers: dict[bytes, bytes], body: bytes) -> Outcome:
    usage = tokens_if_plain(body) if status == 200 else None
    if usage is not None:
        request_id = headers.get(b"x-request-id", b"").decode(errors="replace")
        return Outcome(retries.SUCCESS, status, body, request_id, usage=usage)
    outcome = _as_it_is(status, headers, body)
    if outcome.verdict is not retries.SUCCESS or (problem := problem_of(status, body)) is None:
        return outcome
    if not problem.status:
        return unreadable(problem.message, problem.detail)
    return _as_it_is(problem.status, headers, body, problem.message)


def _as_it_is(status: int, headers: dict[bytes, bytes], body: bytes, message: str = "") -> Outcome:
    """By its status; `message` says what happened, where that is more than the status."""
    verdict = retries.judge_answer(status, headers, body)
    request_id = headers.get(b"x-request-id", b"").decode(errors="replace")
    if verdict.budget is Budget.SETTLED:
        return Outcome(verdict, status, body, request_id)
    if 300 <= status < 400:
        message = f"The backend redirects{_whereto(headers)} ({status}), which is not followed."
    if verdict is retries.BEHIND_IS_AWAY:
        message = f"The backend answered {status}, for it cannot reach what is behind it."
    message = message or f"The backend answered {status}."
    wait = retries.asked_wait(headers, datetime.now(UTC))
    return Outcome(verdict, status, body, request_id, message=message, retry_after=wait)


def unreadable(message: str, detail: str = "") -> Outcome:
    """An answer came, but no result."""
    return Outcome(retries.UNREADABLE, code=LineCode.INVALID_RESPONSE, message=message, detail=detail)


def _whereto(headers: dict[bytes, bytes]) -> str:
    """Scheme and host only: the rest may hold a secret."""
    found = _LOCATION.match(headers.get(b"location", b"").decode("latin-1"))
    return f" to {found[1]}" if found else ""


def _headers(settings: Settings, backend: BackendConfig | None) -> list[Header]:
    """Of the registry: those to add, and what marks our traffic where it is told from direct."""
    if backend is None:
        return []
    marked = {settings.dispatch_header: settings.dispatch_value} if backend.dispatched else {}
    added = [*backend.headers.items(), *marked.items()]
    return list({name.lower().encode(): value.encode() for name, value in added}.items())


def _broken(error: httpx.TransportError) -> Outcome:
    if isinstance(error, httpx.RemoteProtocolError) and not str(error).startswith(_ENDED):
        message = f"What the backend sent is not HTTP: {error}"
        return Outcome(retries.ANSWER_BROKE, code=LineCode.INVALID_RESPONSE, message=message)
    message = f"The connection ended before the answer did: {error}"
    return Outcome(retries.ANSWER_BROKE, message=message, has_begun=str(error).startswith(_TORN))
