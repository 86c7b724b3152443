"""One request to a backend: what was answered, or how it failed; no retry of its own (R9)."""

import asyncio
from datetime import UTC, datetime
from typing import NamedTuple

import httpx
from pydantic import BaseModel, ValidationError

from batchwright.contracts.errors import LineCode
from batchwright.rules import retries
from batchwright.rules.answers import is_json
from batchwright.rules.retries import Budget, Verdict
from batchwright.settings import Settings

_LISTING_SECONDS = 5.0
_WAITS = ("connect", "read", "write", "pool")
# How httpx's own engine words a connection that ended: it has no class of its own for that.
_ENDED = ("Server disconnected", "peer closed connection")


class Outcome(NamedTuple):
    """`status` is 0 where no usable answer came; then `code` and `message` say what happened."""

    verdict: Verdict
    status: int = 0
    body: bytes = b""
    backend_request_id: str = ""
    code: LineCode = LineCode.CONNECTION_ERROR
    message: str = ""
    retry_after: float | None = None


class ListingFailed(Exception):
    """A backend does not tell its models; the message says how."""


class _Model(BaseModel):
    id: str


class _ModelList(BaseModel):
    data: list[_Model]


class _TooLarge(Exception):
    """The answer passed the limit."""


class InferenceClient:
    """Sends bodies as they are; `transport` is the process's one connection pool."""

    def __init__(self, transport: httpx.AsyncBaseTransport, settings: Settings) -> None:
        self._transport = transport
        self._limit = settings.max_response_bytes
        self._timeout = settings.request_timeout_seconds
        self._headers = [(b"content-type", b"application/json"), (b"accept", b"application/json")]
        self._headers.append((b"accept-encoding", b"identity"))
        if settings.backend_api_key:
            self._headers.append((b"authorization", b"Bearer " + settings.backend_api_key.encode()))
        # Connecting must time out as connecting, also where the whole request has hardly more time.
        connect = min(settings.connect_timeout_seconds, self._timeout * 0.9)
        self._extensions = {"timeout": {"connect": connect, "read": None, "write": None, "pool": connect}}

    async def send(self, url: httpx.URL, body: bytes, request_id: str) -> Outcome:
        """POSTs `body` to `url`; `request_id` is the line's own, equal on every attempt.

        Never raises for what a backend or the network does; a cancelled call closes its connection.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._exchange(self._request(url, body, request_id.encode()))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            return Outcome(retries.NOT_SENT, message=f"The backend could not be reached: {error}")
        except (httpx.TimeoutException, TimeoutError):
            message = f"The backend did not answer within {self._timeout:g} s."
            return Outcome(retries.NO_ANSWER_IN_TIME, code=LineCode.REQUEST_TIMEOUT, message=message)
        except httpx.TransportError as error:
            return _broken(error)
        except _TooLarge:
            message = f"The answer is larger than {self._limit} bytes."
            return Outcome(retries.TOO_LARGE, code=LineCode.RESPONSE_TOO_LARGE, message=message)

    async def models(self, url: str) -> list[str]:
        """The ids a backend lists at /v1/models. Raises ListingFailed."""
        extensions = {"timeout": dict.fromkeys(_WAITS, _LISTING_SECONDS)}
        request = httpx.Request("GET", f"{url}/v1/models", headers=self._headers, extensions=extensions)
        try:
            async with asyncio.timeout(_LISTING_SECONDS):
                answer = await self._transport.handle_async_request(request)
                try:
                    body = await self._read(answer)
                finally:
                    await answer.aclose()
            if answer.status_code != 200:
                raise ListingFailed(f"{url}/v1/models answered {answer.status_code}")
            return [model.id for model in _ModelList.model_validate_json(body).data]
        except (httpx.HTTPError, TimeoutError, ValidationError, _TooLarge) as error:
            raise ListingFailed(f"{url}/v1/models: {error or type(error).__name__}") from error

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _request(self, url: httpx.URL, body: bytes, request_id: bytes) -> httpx.Request:
        """With a stream, not content: httpx then leaves the headers alone, which is much cheaper."""
        headers = [
            (b"host", url.netloc),
            *self._headers,
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", request_id),
            (b"idempotency-key", request_id),
        ]
        stream = httpx.ByteStream(body)
        return httpx.Request("POST", url, headers=headers, stream=stream, extensions=self._extensions)

    async def _exchange(self, request: httpx.Request) -> Outcome:
        answer = await self._transport.handle_async_request(request)
        headers = {name.lower(): value for name, value in answer.headers.raw}
        try:
            body = await self._read(answer, packed=b"content-encoding" in headers)
        finally:
            await answer.aclose()
        return _outcome(answer.status_code, headers, body)

    async def _read(self, answer: httpx.Response, *, packed: bool = True) -> bytes:
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        # httpx's own iterators cost as much as the rest of an exchange; they are for what has to be unpacked.
        pieces = answer.aiter_bytes() if packed else answer.stream
        chunks: list[bytes] = []
        size = 0
        async for chunk in pieces:
            size += len(chunk)
            if size > self._limit:
                raise _TooLarge
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _outcome(status: int, headers: dict[bytes, bytes], body: bytes) -> Outcome:
    verdict = retries.judge(status)
    if verdict is retries.SUCCESS and not is_json(body):
        message = f"The backend answered {status} with a body that is not JSON."
        return Outcome(retries.UNREADABLE, code=LineCode.INVALID_RESPONSE, message=message)
    request_id = headers.get(b"x-request-id", b"").decode(errors="replace")
    if verdict.budget is Budget.SETTLED:
        return Outcome(verdict, status, body, request_id)
    wait = retries.retry_after(headers.get(b"retry-after", b"").decode(errors="replace"), datetime.now(UTC))
    message = f"The backend answered {status}."
    return Outcome(verdict, status, body, request_id, message=message, retry_after=wait)


def _broken(error: httpx.TransportError) -> Outcome:
    if isinstance(error, httpx.RemoteProtocolError) and not str(error).startswith(_ENDED):
        message = f"What the backend sent is not HTTP: {error}"
        return Outcome(retries.ANSWER_BROKE, code=LineCode.INVALID_RESPONSE, message=message)
    return Outcome(retries.ANSWER_BROKE, message=f"The connection ended before the answer did: {error}")
