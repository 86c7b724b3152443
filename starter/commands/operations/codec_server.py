"""`batchwright codec-server`: decrypts payloads for the Temporal Web UI and the `temporal` CLI.

This is a codec server as Temporal defines it. It accepts POST to /encode and /decode, and to the same paths
below a namespace, as in /default/decode. The bodies of request and response are `{"payloads": [...]}`.
"""

import asyncio
import signal
from collections.abc import Collection, Sequence
from typing import NoReturn
from urllib.parse import urlsplit

import typer
from aiohttp import web
from aiohttp.typedefs import Handler
from google.protobuf.json_format import MessageToDict, Parse, ParseError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

from batchwright.rules.loopback import is_loopback
from batchwright.settings import Settings, SettingsError, load
from batchwright.starter.output import stderr
from batchwright.temporal.codec import EncryptionCodec, PayloadDecryptionError, load_keys

_MOST_BYTES = 64 * 1024 * 1024
_ALLOWED = {
    "Access-Control-Allow-Methods": "POST, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, X-Namespace, Authorization",
    "Access-Control-Max-Age": "600",
}


class CodecServer:
    """A web application that decrypts Temporal payloads, so that Temporal's Web UI can show them.

    It can also encrypt payloads. Browsers may call it only from web pages whose origin is in `origins`.
    Programs other than browsers send no origin, and are accepted.
    """

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
        except PayloadDecryptionError as error:
            raise web.HTTPBadRequest(text=str(error)) from error

    async def _preflight(self, _: web.Request) -> web.Response:
        return web.Response(status=204, headers=_ALLOWED)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reject requests from web pages of unknown origins with 403.

        Add CORS headers to all other responses.
        """
        origin = request.headers.get("Origin")
        if origin is not None and origin not in self._origins:
            return web.Response(status=403, text=f"{origin} is not in BATCHWRIGHT_CODEC_ORIGINS.")
        try:
            answer = await handler(request)
        except web.HTTPException as error:  # with the headers below, a page can read the error
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


_WRONG_SETTING = 2
_FAILED = 1


def codec_server() -> None:
    """Decrypt payloads for the Web UI.

    The server listens on BATCHWRIGHT_CODEC_HOST and BATCHWRIGHT_CODEC_PORT until it gets a stop signal.
    """
    try:
        settings = load()
        server = CodecServer(_codec(settings), origins := origins_of(settings))
    except SettingsError as error:
        _end(str(error), _WRONG_SETTING)
    try:
        asyncio.run(_serve(server, settings, origins))
    except OSError as error:
        address = f"{settings.codec_host}:{settings.codec_port}"
        _end(
            f"The codec server cannot listen on {address} (BATCHWRIGHT_CODEC_PORT): {error.strerror}.",
            _FAILED,
        )


def origins_of(settings: Settings) -> list[str]:
    """Return the origins of the web pages that may call the codec server, as `scheme://host:port`.

    They come from BATCHWRIGHT_CODEC_ORIGINS. By default, only the origin of the Temporal Web UI is allowed.
    """
    parts = [urlsplit(url) for url in settings.codec_origins or [settings.temporal_ui_url] if url]
    return [f"{part.scheme}://{part.netloc}" for part in parts]


def _codec(settings: Settings) -> EncryptionCodec:
    if not is_loopback(settings.codec_host) and not settings.codec_trusted_network:
        raise SettingsError(
            f"BATCHWRIGHT_CODEC_HOST is {settings.codec_host!r}, but must be a loopback address: each client "
            "that reaches the codec server can read all payloads. Set BATCHWRIGHT_CODEC_TRUSTED_NETWORK=true "
            "if only trusted clients can reach it."
        )
    keys = load_keys(settings)
    if not keys:
        raise SettingsError("BATCHWRIGHT_PAYLOAD_KEYS is not set: there is no key to decrypt with.")
    return EncryptionCodec(keys)


async def _serve(server: CodecServer, settings: Settings, origins: list[str]) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    runner = web.AppRunner(server.app(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.codec_host, settings.codec_port).start()
        host, port = runner.addresses[0][:2]
        pages = ", ".join(origins) or "no page: BATCHWRIGHT_CODEC_ORIGINS names none"
        stderr().print(f"The codec server listens on http://{host}:{port} for {pages}.", markup=False)
        await stopped.wait()
    finally:
        await runner.cleanup()


def _end(message: str, code: int) -> NoReturn:
    stderr().print(message, markup=False)
    raise typer.Exit(code)
