"""/tasks/callback/{token}: backends tell that a job has ended. Whoever has the token may, once."""

import logging
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from api.errors import ApiError
from api.objects import answer
from api.responses import errors
from api.services import Services
from batchwright.rules.answers import is_json
from batchwright.rules.callbacks import PATH, Callback, read_token

logger = logging.getLogger(__name__)
_Token = Annotated[str, Path(description="of the URL that came with the job")]
_BODY: dict[str, object] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
}


class CallbackObject(BaseModel):
    object: Literal["callback"] = "callback"
    accepted: bool = Field(description="false where the job's end had been told before: nothing changes")


class CallbackRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._calls = services.database.callbacks

    def router(self) -> APIRouter:
        router = APIRouter(tags=["Backends"])
        router.add_api_route(
            PATH + "{token}",
            self.call,
            methods=["POST"],
            response_model=CallbackObject,
            openapi_extra=_BODY,
            responses=errors(401, 410),
        )
        return router

    async def call(self, request: Request, token: _Token) -> Response:
        """Tell that a job has ended. The first call counts; a repeat is answered 200 and changes nothing."""
        callback = self._callback(token)
        expires_at = datetime.fromtimestamp(callback.expires_at, UTC)
        if self._services.clock() >= expires_at:
            message = "This URL has expired: nobody waits for the job any more."
            self._count("expired")
            raise ApiError(410, message, code="callback_expired")
        body, size = await self._read(request)
        if body is not None and not is_json(body):
            self._count("body")
            raise ApiError(400, "We could not parse the JSON body of your request.")
        accepted = await self._calls.accept(callback.id, body, size, expires_at)
        logger.info("a backend called back", extra={"callback": callback.id, "accepted": accepted})
        if body is None:
            self._count("too_large")
            most = self._services.settings.max_response_bytes
            raise ApiError(413, f"The body of this request may hold at most {most} bytes.")
        self._count("accepted" if accepted else "repeated")
        return answer(CallbackObject(accepted=accepted))

    def _count(self, result: str) -> None:
        self._services.metrics.callbacks.labels(result).inc()

    def _callback(self, token: str) -> Callback:
        """The same answer to every token that is not ours: who guesses learns nothing."""
        secret = self._services.settings.callback_secret
        found = read_token(token, secret) if secret else None
        if found is None:
            self._count("token")
            message = "This URL is none that was given to a backend."
            raise ApiError(401, message, code="invalid_callback_token")
        return found

    async def _read(self, request: Request) -> tuple[bytes | None, int]:
        """The body, None where it is larger than an answer may be; and how many bytes came of it."""
        most, body, size = self._services.settings.max_response_bytes, bytearray(), 0
        try:
            async for piece in request.stream():
                size += len(piece)
                if size > most:
                    return None, size
                body += piece
        except ClientDisconnect:
            raise ApiError(400, "The request ended before its body did.") from None
        return bytes(body), size
