"""`batchwright codec-server`: what the Web UI and the `temporal` CLI read encrypted payloads with."""

import asyncio
import signal
from typing import NoReturn
from urllib.parse import urlsplit

import typer
from aiohttp import web

from batchwright.rules.transport import is_loopback
from batchwright.settings import Settings, SettingsError, load
from batchwright.temporal.codec import EncryptionCodec, keys_of
from starter.codec.server import CodecServer
from starter.output import stderr

_WRONG_SETTING = 2
_FAILED = 1


def codec_server() -> None:
    """Decrypt payloads for the Web UI.

    It listens on BATCHWRIGHT_CODEC_HOST and BATCHWRIGHT_CODEC_PORT until a signal.
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
    """As browsers send them: scheme, host and port."""
    parts = [urlsplit(url) for url in settings.codec_origins or [settings.temporal_ui_url] if url]
    return [f"{part.scheme}://{part.netloc}" for part in parts]


def _codec(settings: Settings) -> EncryptionCodec:
    if not is_loopback(settings.codec_host) and not settings.codec_trusted_network:
        raise SettingsError(
            "BATCHWRIGHT_CODEC_HOST is wrong: whoever reaches the codec server reads every payload; it "
            "listens on loopback addresses only, unless BATCHWRIGHT_CODEC_TRUSTED_NETWORK=true says that "
            f"only those who may can reach it (it is {settings.codec_host!r})."
        )
    keys = keys_of(settings)
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
