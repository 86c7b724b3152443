"""Main function of the API process: reads the settings and serves the API.

The first SIGTERM or SIGINT stops the process cleanly. The second one stops it at once.
"""

import argparse
import asyncio
import errno
import gc
import logging
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Never

import uvicorn
import uvloop

from batchwright.api.app import build_app
from batchwright.api.client_limits.long_responses import ApiShutdown
from batchwright.api.client_limits.slow_connections import BoundedProtocol
from batchwright.api.lifespan import open_dependencies
from batchwright.api.services.batches.progress_events import BatchEvents
from batchwright.api.services.calls.interactive_calls import InteractiveCalls
from batchwright.database.errors import DatabaseError, DatabaseUnavailable
from batchwright.process_exit import run_and_exit
from batchwright.rules.loopback import is_loopback
from batchwright.settings import Settings, SettingsError, load, require_backends
from batchwright.settings.unknown_variables import warn_about_unknown_variables
from batchwright.storage.base import StorageUnavailable
from batchwright.telemetry.logging import configure_logging

logger = logging.getLogger(__name__)

_BINDING = (errno.EACCES, errno.EADDRINUSE, errno.EADDRNOTAVAIL)


class _CannotListen(Exception):
    """The error if the API cannot listen on its address and port: the port is in use, binding is not allowed,
    or this machine lacks the address.
    """


class _Server(uvicorn.Server):
    """A version of uvicorn's server without its signal handlers.

    This module handles signals itself, because the exit code after a signal must be 0.

    When the server stops, it ends the event streams in which clients follow batches. All other requests get
    `config.timeout_graceful_shutdown` seconds to finish. Requests that take longer are cancelled.
    """

    def __init__(self, config: uvicorn.Config, stopping: ApiShutdown) -> None:
        super().__init__(config)
        self._stopping = stopping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.set(self.config.timeout_graceful_shutdown or 0.0)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def parse_arguments(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, which accepts only --help.

    Raises:
        SystemExit: the arguments contain --help or anything else.
    """
    about = "Serve the HTTP API. Configure it with BATCHWRIGHT_* variables."
    argparse.ArgumentParser("batchwright api", description=about).parse_args(arguments)


def main() -> int:
    """Run the API until a signal arrives, and return the exit code of the process.

    The code is 0 after a signal, 2 if a setting is wrong, and 1 after any other failure.
    """
    try:
        settings = load()
        require_backends(settings)
        _check_host(settings)
        _check_issuer(settings)
    except SettingsError as error:
        return _fail(error, 2)
    configure_logging(settings)
    warn_about_unknown_variables()
    try:
        with (
            _bound_socket(settings) as listener,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_serve(settings, listener))
    except SettingsError as error:
        return _fail(error, 2)
    except (_CannotListen, DatabaseError, StorageUnavailable) as error:
        return _fail(error, 1)
    except Exception:  # an unexpected error ends the process
        logger.exception("the API failed")
        return 1


async def _serve(settings: Settings, listener: socket.socket) -> int:
    """Serve requests until a signal arrives, and return 0.

    A signal that arrives while the server is still starting cancels the start.
    """
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
    """The handler of stop signals. It cancels the server's start, or stops the server if it already runs."""

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
    async with open_dependencies(settings) as deps:
        events = BatchEvents(deps)
        deps.background.start("batch_events", events.run)
        interactive = None if deps.routers is None else InteractiveCalls(deps, deps.routers)
        if interactive is not None:
            deps.background.start("interactive_calls", interactive.run)
        config = uvicorn.Config(
            build_app(deps, events, interactive),
            http=BoundedProtocol,
            access_log=False,
            log_config=None,
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=settings.trusted_proxies,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
            ws="none",
        )
        stop.server = _Server(config, deps.stopping)
        config.load()  # imports all objects that live as long as the process
        gc.collect()
        gc.freeze()  # full collections would scan these objects again while requests wait
        host, port = listener.getsockname()[:2]
        logger.info("the API listens", extra={"host": host, "port": port})
        await stop.server.serve(sockets=[listener])
        if interactive is not None:
            with suppress(DatabaseUnavailable):
                await interactive.close()


def _check_host(settings: Settings) -> None:
    """Check the address on which the API is to listen.

    Without authentication, every caller can act as any tenant. The address must then be a loopback address,
    because only programs on the same machine can reach a loopback address.

    Raises:
        SettingsError: the address is empty. Or authentication is off, and the address is not loopback.
    """
    host = settings.api_host
    if is_loopback(host) or (host and settings.auth != "none"):
        return
    raise SettingsError(
        "BATCHWRIGHT_API_HOST is wrong: without authentication the API may listen only on a loopback address "
        "such as 127.0.0.1; to listen elsewhere, set BATCHWRIGHT_AUTH=api_key, or BATCHWRIGHT_AUTH="
        f"trusted_header if only a gateway that names the tenant can reach the API (it is {host!r})."
    )


def _check_issuer(settings: Settings) -> None:
    """Reject an issuer of tokens in the settings if the API does not accept tokens.

    Raises:
        SettingsError: an issuer is configured, but BATCHWRIGHT_AUTH is not `api_key`. Tokens are accepted
            only with this value.
    """
    if settings.oidc_issuer and settings.auth != "api_key":
        raise SettingsError(
            "BATCHWRIGHT_OIDC_ISSUER is set, but tokens are only accepted with BATCHWRIGHT_AUTH=api_key: set "
            f"that, or unset the issuer (BATCHWRIGHT_AUTH is {settings.auth!r})."
        )


@contextmanager
def _bound_socket(settings: Settings) -> Generator[socket.socket]:
    """Yield a socket that is bound to the configured address and port, and close it afterwards.

    Raises:
        _CannotListen: the port is in use, this user may not bind it, or this machine lacks the address.
    """
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


def _fail(reason: object, code: int) -> int:
    print(reason, file=sys.stderr)
    return code


def run() -> Never:
    """Parse the command line, run `main`, and exit with the code that `main` returns."""
    parse_arguments()
    run_and_exit(main)
