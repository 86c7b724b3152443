"""One request to a backend: what was answered, or how it failed; no retry of its own (R9)."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
from pydantic import BaseModel

from batchwright.contracts.errors import LineCode
from batchwright.inference.transport import AiohttpTransport
from batchwright.rules import verdicts
from batchwright.rules.answers import is_json
from batchwright.rules.verdicts import Verdict
from batchwright.settings import Settings


@dataclass(frozen=True, slots=True)
class Outcome:
    """`status` is 0 where no answer came; then `code` and `message` say what happened."""

    verdict: Verdict
    status: int = 0
    body: bytes = b""
    backend_request_id: str = ""
    code: LineCode = LineCode.CONNECTION_ERROR
    message: str = ""
    retry_after: float | None = None


class _Model(BaseModel):
    id: str


class _ModelList(BaseModel):
    data: list[_Model]


_WAITS = ("connect", "read", "write", "pool")


class _TooLarge(Exception):
    """The answer passed the limit."""


class InferenceClient:
    """Sends bodies as they are; `transport` is the process's one connection pool."""

    def __init__(self, transport: httpx.AsyncBaseTransport, settings: Settings) -> None:
        self._transport = transport
        self._limit = settings.max_response_bytes
        self._timeout = settings.request_timeout_seconds
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        if settings.backend_api_key:
            self._headers["authorization"] = f"Bearer {settings.backend_api_key}"
        waits = {"connect": settings.connect_timeout_seconds, "read": self._timeout, "write": self._timeout}
        self._extensions = {"timeout": {**waits, "pool": self._timeout}}

    async def send(self, url: str, body: bytes, request_id: str) -> Outcome:
        """POSTs `body` to `url`; `request_id` is the line's own, equal on every attempt.

        Never raises for what a backend or the network does; a cancelled call closes its connection.
        """
        headers = {**self._headers, "x-request-id": request_id, "idempotency-key": request_id}
        request = httpx.Request("POST", url, headers=headers, content=body, extensions=self._extensions)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._exchange(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            return Outcome(verdicts.NOT_SENT, message=f"The backend could not be reached: {error}")
        except (httpx.ReadTimeout, httpx.WriteTimeout, TimeoutError):
            message = f"The backend did not answer within {self._timeout:g} s."
            return Outcome(verdicts.NO_ANSWER_IN_TIME, code=LineCode.REQUEST_TIMEOUT, message=message)
        except httpx.TransportError as error:
            return Outcome(verdicts.ANSWER_BROKE, message=f"The connection broke before the answer: {error}")
        except _TooLarge:
            message = f"The answer is larger than {self._limit} bytes."
            return Outcome(verdicts.TOO_LARGE, code=LineCode.RESPONSE_TOO_LARGE, message=message)

    async def models(self, url: str) -> list[str]:
        """The ids a backend lists at /v1/models. Raises httpx.HTTPError or ValueError."""
        request = httpx.Request(
            "GET",
            f"{url}/v1/models",
            headers=self._headers,
            extensions={"timeout": dict.fromkeys(_WAITS, 5.0)},
        )
        async with asyncio.timeout(10):
            answer = await self._transport.handle_async_request(request)
            try:
                body = await answer.aread()
            finally:
                await answer.aclose()
        answer.raise_for_status()
        return [model.id for model in _ModelList.model_validate_json(body).data]

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _exchange(self, request: httpx.Request) -> Outcome:
        answer = await self._transport.handle_async_request(request)
        try:
            body = await self._read(answer)
        finally:
            await answer.aclose()
        return self._outcome(answer, body)

    async def _read(self, answer: httpx.Response) -> bytes:
        chunks: list[bytes] = []
        size = 0
        async for chunk in answer.aiter_raw():
            size += len(chunk)
            if size > self._limit:
                raise _TooLarge
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _outcome(self, answer: httpx.Response, body: bytes) -> Outcome:
        verdict = verdicts.judge(answer.status_code)
        if verdict is verdicts.SUCCESS and not is_json(body):
            message = f"The backend answered {answer.status_code} with a body that is not JSON."
            return Outcome(verdicts.UNREADABLE, code=LineCode.INVALID_RESPONSE, message=message)
        wait = answer.headers.get("retry-after") if verdict.budget is not verdicts.Budget.SETTLED else None
        return Outcome(
            verdict,
            status=answer.status_code,
            body=body,
            backend_request_id=answer.headers.get("x-request-id", ""),
            message=f"The backend answered {answer.status_code}.",
            retry_after=verdicts.retry_after(wait, datetime.now(UTC)),
        )


def transport(settings: Settings) -> httpx.AsyncBaseTransport:
    """The engine of `settings.http_engine`, without retries or redirects."""
    connections = settings.global_in_flight + 8  # room for the registry's questions
    if settings.http_engine == "aiohttp":
        return AiohttpTransport(connections=connections)
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx.AsyncHTTPTransport(limits=limits, retries=0)
