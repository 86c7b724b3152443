"""/tasks/callback/{token}: backends report that a job has ended. The signed token authorizes the call.

A job is a request that a backend accepts at once and answers later.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError
from batchwright.api.openapi import error_responses
from batchwright.api.schemas.openai_objects import json_response
from batchwright.rules.backends.callback_tokens import CALLBACK_PATH, CallbackToken, verify_token
from batchwright.rules.json_text import is_json

logger = logging.getLogger(__name__)
_NO_TENANT = ""  # a token names no tenant: all callbacks share the limit of one
_Token = Annotated[str, Path(description="token of the callback URL that was sent with the job")]
_BODY: dict[str, object] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
}


class CallbackObject(BaseModel):
    object: Literal["callback"] = "callback"
    accepted: bool = Field(description="false if the end of the job was reported before: nothing changes")


class CallbackRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._callbacks = deps.database.callbacks
        self._held = deps.held_bytes

    def router(self) -> APIRouter:
        router = APIRouter(tags=["Backends"])
        router.add_api_route(
            CALLBACK_PATH + "{token}",
            self.call,
            methods=["POST"],
            response_model=CallbackObject,
            openapi_extra=_BODY,
            responses=error_responses(401, 410, 429),
        )
        return router

    async def call(self, request: Request, token: _Token) -> Response:
        """Report that a job has ended. Backends call this route.

        A job is a request that a backend accepts at once and answers later. Only the first report for a job
        counts. A repeated report gets status 200 and changes nothing. The body of a repeated report is not
        read.
        """
        callback = self._callback(token)
        expires_at = datetime.fromtimestamp(callback.expires_at, UTC)
        if self._deps.clock() >= expires_at:
            raise self._expired()
        if await self._callbacks.is_received(callback.id):
            return self._report(callback, accepted=False)
        with self._held.counted(_NO_TENANT) as hold:
            body, size = await self._read(request, hold)
            if body is not None and not is_json(body):
                self._count("body")
                raise ApiError(400, "We could not parse the JSON body of your request.")
            accepted = await self._callbacks.accept(callback.id, body, size, expires_at)
        if not accepted and not await self._callbacks.is_received(callback.id):
            raise self._expired()  # while its body was read
        if body is None:
            self._count("too_large")
            max_bytes = self._deps.settings.max_response_bytes
            raise ApiError(413, f"The body of this request may hold at most {max_bytes} bytes.")
        return self._report(callback, accepted=accepted)

    def _report(self, callback: CallbackToken, *, accepted: bool) -> Response:
        logger.info("backend callback received", extra={"callback": callback.id, "accepted": accepted})
        self._count("accepted" if accepted else "repeated")
        return json_response(CallbackObject(accepted=accepted))

    def _expired(self) -> ApiError:
        self._count("expired")
        message = "This URL has expired: the job is no longer waited for."
        return ApiError(410, message, code="callback_expired")

    def _count(self, result: str) -> None:
        self._deps.metrics.callbacks.labels(result).inc()

    def _callback(self, token: str) -> CallbackToken:
        """Check the token in the URL. Return the content of the token: the job's id and the expiry time.

        Raises:
            ApiError: the token is not valid (401). The error does not say why, because attackers could use
                the reason.
        """
        secret = self._deps.settings.callback_secret
        found = verify_token(token, secret) if secret else None
        if found is None:
            self._count("token")
            message = "This URL was not given to a backend."
            raise ApiError(401, message, code="invalid_callback_token")
        return found

    async def _read(self, request: Request, hold: Callable[[int], None]) -> tuple[bytes | None, int]:
        """Return the request's body and its size in bytes.

        If the body is too large, return None and the number of bytes that were read.

        Args:
            request: the backend's request.
            hold: function that counts bytes in memory. For each part of the body that arrives, it is called
                with the part's size in bytes. It raises ApiError (429) if too many bytes are in memory.

        Raises:
            ApiError: the backend closed the connection too early (400). Or `hold` has raised this error.
        """
        max_bytes, body, size = self._deps.settings.max_response_bytes, bytearray(), 0
        try:
            async for piece in request.stream():
                size += len(piece)
                if size > max_bytes:
                    return None, size
                try:
                    hold(len(piece))
                except ApiError:
                    self._count("no_room")
                    raise
                body += piece
        except ClientDisconnect:
            raise ApiError(400, "The request ended before its body did.") from None
        return bytes(body), size
