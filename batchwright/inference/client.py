"""One request to a backend: what was answered, or how it failed; no retry of its own (R9)."""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING

from batchwright.contracts.registry import BackendConfig, GatewayConfig
from batchwright.inference.engine import Answer, Engine, Exchange, Fixed, Header, Request, Target
from batchwright.inference.listing import Listing, ListingFailed, listed
from batchwright.inference.outcomes import FAILURES, Outcome, as_it_is, failed, judged
from batchwright.inference.unpacking import unpacked
from batchwright.rules import retries
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
        return self._post(target, body, request_id, request_id, extra, judged)

    def begin(
        self,
        target: Target,
        body: bytes,
        request_id: str,
        extra: Sequence[Header],
        ended: Callable[[Outcome], None],
    ) -> Exchange | None:
        """As `send` where the request can go out at once; `ended` is told what came of it. It raises nothing.

        None: the request cannot, and nothing was done.
        """
        if self.problem or tracing.spans() is not None:
            return None
        request = self._request(target, body, request_id, request_id, extra)
        over = partial(self._over, ended)
        return self._engine.begin(request, most_bytes=self._limit, seconds=self._timeout, ended=over)

    async def submit(
        self, target: Target, body: bytes, request_id: str, key: str, extra: Sequence[Header] = ()
    ) -> Outcome:
        """The same of what starts a job: any body will do. `key` tells the jobs of a line apart."""
        return await self._post(target, body, request_id, key, extra, as_it_is)

    async def look(
        self, method: bytes, target: Target, request_id: str, extra: Sequence[Header] = ()
    ) -> Outcome:
        """Asks after a job, or gives it up: what was answered as it is. Never raises, as `send`."""
        if self.problem:
            return self._no_key()
        headers = [(b"x-request-id", request_id.encode()), *self._passed(extra)]
        body = b"{}" if method == b"POST" else b""
        request = Request(method, target, headers, body, self._first_byte, self._idle, self._fixed)
        return await self._exchanged(request, as_it_is)

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
        request = self._request(target, body, request_id, key, extra)
        spans = tracing.spans()
        if spans is None:
            return self._exchanged(request, read)
        return self._traced(spans, request, request_id, read)

    def _request(
        self, target: Target, body: bytes, request_id: str, key: str, extra: Sequence[Header]
    ) -> Request:
        headers = [(b"x-request-id", request_id.encode()), (b"idempotency-key", key.encode())]
        if extra:
            headers += self._passed(extra)
        return Request(b"POST", target, headers, body, self._first_byte, self._idle, self._fixed)

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
        except FAILURES as error:
            return self._failed_by(error)

    def _over(self, ended: Callable[[Outcome], None], answer: Answer | Exception) -> None:
        if isinstance(answer, Answer):
            try:
                is_packed = b"content-encoding" in answer.headers
                body = unpacked(answer, self._limit) if is_packed else answer.body
                outcome = judged(answer.status, answer.headers, body)
            except FAILURES as error:
                outcome = self._failed_by(error)
        else:
            outcome = self._failed_by(answer)
        ended(outcome)

    def _failed_by(self, error: Exception) -> Outcome:
        return failed(error, seconds=self._timeout, most_bytes=self._limit)

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


def _headers(settings: Settings, backend: BackendConfig | None) -> list[Header]:
    """Of the registry: those to add, and what marks our traffic where it is told from direct."""
    if backend is None:
        return []
    marked = {settings.dispatch_header: settings.dispatch_value} if backend.dispatched else {}
    added = [*backend.headers.items(), *marked.items()]
    return list({name.lower().encode(): value.encode() for name, value in added}.items())
