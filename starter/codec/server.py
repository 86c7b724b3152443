"""Temporal's codec server protocol: the Web UI and the `temporal` CLI have payloads decrypted here.

POST /encode and /decode, also below the namespace's name; the body and its answer are `{"payloads": [...]}`.
"""

from collections.abc import Collection, Sequence

from aiohttp import web
from aiohttp.typedefs import Handler
from google.protobuf.json_format import MessageToDict, Parse, ParseError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

from batchwright.temporal.codec import PayloadLocked

_MOST_BYTES = 64 * 1024 * 1024
_ALLOWED = {
    "Access-Control-Allow-Methods": "POST, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, X-Namespace, Authorization",
    "Access-Control-Max-Age": "600",
}


class CodecServer:
    """`origins`: of the pages that may ask; programs that are no pages send none and may too."""

    def __init__(self, codec: PayloadCodec, origins: Collection[str]) -> None:
        self._codec, self._origins = codec, frozenset(origins)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_MOST_BYTES, middlewares=[self._guard])
        for prefix in ("", "/{namespace}"):
            app.router.add_post(f"{prefix}/encode", self._encode)
            app.router.add_post(f"{prefix}/decode", self._decode)
            for name in ("encode", "decode"):
                app.router.add_options(f"{prefix}/{name}", self._preflight)
        app.router.add_get("/healthz", self._healthz)
        return app

    async def _encode(self, request: web.Request) -> web.Response:
        return _answer(await self._codec.encode(await _payloads(request)))

    async def _decode(self, request: web.Request) -> web.Response:
        try:
            return _answer(await self._codec.decode(await _payloads(request)))
        except PayloadLocked as error:
            raise web.HTTPBadRequest(text=str(error)) from error

    async def _preflight(self, _: web.Request) -> web.Response:
        return web.Response(status=204, headers=_ALLOWED)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A page of another origin gets nothing, whatever it asks."""
        origin = request.headers.get("Origin")
        if origin is not None and origin not in self._origins:
            return web.Response(status=403, text=f"{origin} is not in BATCHWRIGHT_CODEC_ORIGINS.")
        try:
            answer = await handler(request)
        except web.HTTPException as error:  # a page may read what is wrong only with the headers below
            answer = web.Response(status=error.status, text=error.text)
        if origin is not None:
            answer.headers["Access-Control-Allow-Origin"] = origin
            answer.headers["Vary"] = "Origin"
        return answer


async def _payloads(request: web.Request) -> Sequence[Payload]:
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="The body has to be application/json.")
    try:
        return Parse(await request.read(), Payloads()).payloads
    except (ParseError, UnicodeDecodeError) as error:
        raise web.HTTPBadRequest(text=f"The body is not Temporal's Payloads as JSON: {error}") from error


def _answer(payloads: Sequence[Payload]) -> web.Response:
    return web.json_response(MessageToDict(Payloads(payloads=payloads)))
