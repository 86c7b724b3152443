"""The API's process: `python -m api`. SIGTERM and SIGINT end it cleanly; a second one does not wait."""

import argparse
import asyncio
import errno
import gc
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import uvicorn
import uvloop

from api.app import build_app
from api.opening import open_services
from api.protocol import bounded
from batchwright.database.errors import DatabaseError
from batchwright.leaving import run_and_leave
from batchwright.settings import Settings, SettingsError, load
from batchwright.settings.misspelt import warn_of_misspelt
from batchwright.storage.base import StorageUnavailable
from batchwright.telemetry.logging import configure

logger = logging.getLogger(__name__)

_BINDING = (errno.EACCES, errno.EADDRINUSE, errno.EADDRNOTAVAIL)


class _CannotListen(Exception):
    """Another has the port, or it may not be had."""


class _Server(uvicorn.Server):
    """uvicorn leaves the signals to us: its own way ends the process by the signal, not with 0."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def take_no_options(arguments: Sequence[str] | None = None) -> None:
    """But --help. Raises SystemExit."""
    about = "Serves the HTTP API. BATCHWRIGHT_* variables set it up."
    argparse.ArgumentParser("batchwright api", description=about).parse_args(arguments)


def main() -> int:
    """Exit code 0 after a signal, 1 where something it needs is not there, 2 for a wrong setting."""
    try:
        settings = load()
        _check_reach(settings)
    except SettingsError as error:
        return _give_up(error, 2)
    configure(settings)
    warn_of_misspelt()
    try:
        with _bound(settings) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, listener))
    except SettingsError as error:
        return _give_up(error, 2)
    except (_CannotListen, DatabaseError, StorageUnavailable) as error:
        return _give_up(error, 1)
    except Exception:  # the edge of the process
        logger.exception("the API failed")
        return 1


async def _serve(settings: Settings, listener: socket.socket) -> int:
    """Serves until a signal; one that comes while the services are opened ends that."""
    stop = _Stop()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop.signalled)
    opening = asyncio.create_task(_open_and_serve(settings, listener, stop))
    stop.opening = opening
    try:
        await opening
    except asyncio.CancelledError:
        logger.info("stopped while starting")
    return 0


class _Stop:
    """What a signal ends: the opening of the services, or the server."""

    def __init__(self) -> None:
        self.opening: asyncio.Task[None] | None = None
        self.server: _Server | None = None

    def signalled(self) -> None:
        if self.server is not None:
            self.server.force_exit = self.server.should_exit
            self.server.should_exit = True
        elif self.opening is not None:
            self.opening.cancel()


async def _open_and_serve(settings: Settings, listener: socket.socket, stop: _Stop) -> None:
    async with open_services(settings) as services:
        config = uvicorn.Config(
            build_app(services),
            http=bounded(settings.api_header_seconds, settings.api_silence_seconds),
            access_log=False,
            log_config=None,
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=settings.trusted_proxies,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
            ws="none",
        )
        stop.server = _Server(config)
        config.load()  # all that stays, with the application's own
        gc.collect()
        gc.freeze()  # a full collection would go over it again and again, while requests wait
        host, port = listener.getsockname()[:2]
        logger.info("the API listens", extra={"host": host, "port": port})
        await stop.server.serve(sockets=[listener])


def _check_reach(settings: Settings) -> None:
    """Without authentication, whoever reaches the API is every tenant. Raises SettingsError."""
    host = settings.api_host
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if loopback or (host and settings.auth != "none"):
        return
    raise SettingsError(
        f"BATCHWRIGHT_API_HOST is wrong: without authentication the API listens on loopback addresses only, "
        f"such as 127.0.0.1; beyond, set BATCHWRIGHT_AUTH=api_key, or BATCHWRIGHT_AUTH=trusted_header where "
        f"only a gateway that tells the tenant can reach it (it is {host!r})."
    )


@contextmanager
def _bound(settings: Settings) -> Generator[socket.socket]:
    """The port, taken before anything is opened. Raises _CannotListen."""
    family = socket.AF_INET6 if ":" in settings.api_host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.api_host, settings.api_port))
        except OSError as error:
            if error.errno not in _BINDING:
                raise
            address = f"{settings.api_host}:{settings.api_port}"
            raise _CannotListen(
                f"The API cannot listen on {address} (BATCHWRIGHT_API_PORT): {error.strerror}."
            ) from error
        yield listener


def _give_up(reason: object, code: int) -> int:
    print(reason, file=sys.stderr)
    return code


if __name__ == "__main__":
    take_no_options()
    # A request makes hundreds of short-lived objects and few cycles: the default collects every few requests.
    gc.set_threshold(50_000, 20, 100)
    run_and_leave(main)
