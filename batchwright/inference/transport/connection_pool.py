"""Sends HTTP requests on reused connections from a connection pool, with a timeout for each request.

For each origin (scheme, host and port), the pool reuses the idle connection that was used last.
"""

import asyncio
import os
import random
import socket
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable
from functools import cached_property, partial

import aiohappyeyeballs
import httpx
from msgspec import Struct

from batchwright.inference.transport.base import (
    HEADER_LINE,
    BackendRequest,
    BackendResponse,
    Exchange,
    OnComplete,
    Origin,
    Transport,
)
from batchwright.inference.transport.host_lookup import HostLookup
from batchwright.inference.transport.http_connection import BackendConnection, IdleTimeout

# Common servers close an idle connection after 5 s, and a POST sent at that moment would be lost.
_KEEPALIVE_SECONDS = 4.0
# Older connections are not reused. A new one may reach a server that was added behind the same name or
# load balancer. The age is random, so that connections that were opened together do not end together.
_MAX_AGE_SECONDS = (45.0, 75.0)
# Time until the next address of a host is tried in parallel (RFC 8305).
_HAPPY_EYEBALLS_DELAY = 0.25
# A response may take minutes. With these options a lost host is detected within one minute; by default the
# first keep-alive packet is sent after two hours.
_TCP_KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

IdleConnection = tuple[BackendConnection, float]  # with the monotonic time when it became idle


class PooledTransport(Transport):
    """HTTP transport that reuses connections and does not use proxies.

    The number of connections is not limited, because callers limit the requests in flight.
    """

    def __init__(self, *, connect_seconds: float, tls: ssl.SSLContext | None = None) -> None:
        """Create the transport. It connects when it is first used.

        Args:
            connect_seconds: time limit for connecting.
            tls: TLS context for https; None trusts the system's certificate authorities.
        """
        self._connect_seconds = connect_seconds
        self._own_tls = tls
        self._idle: defaultdict[Origin, deque[IdleConnection]] = defaultdict(deque)
        self._sweeping: asyncio.TimerHandle | None = None
        self._timeouts, self._hosts = TimeoutWheel(), HostLookup()
        self._in_flight = 0
        self._is_retired = False

    async def exchange(self, request: BackendRequest, *, max_bytes: int, seconds: float) -> BackendResponse:
        origin = request.target.origin
        timeout = self._timeouts.start(seconds)
        self._in_flight += 1
        try:
            connection = self._idle_connection(origin) or await self._connect(origin, seconds)
            if timeout.expired:  # the time ran out while connecting, so nothing was sent
                connection.abort()
                raise _connect_timeout(seconds)
            timeout.on_timeout = connection.time_out
            idle_timeout = _idle_timeout(request) if request.first_byte or request.idle else None
            response = await connection.exchange(_head(request), request.body, max_bytes, idle_timeout)
        finally:
            self._end(timeout)
        self._release(origin, connection)
        return response

    def try_exchange_now(
        self, request: BackendRequest, *, max_bytes: int, seconds: float, ended: OnComplete
    ) -> Exchange | None:
        """Send a request on an idle connection and return the exchange; None if no connection is idle.

        `ended` is called once with the response or the error.
        """
        origin = request.target.origin
        connection = self._idle_connection(origin)
        if connection is None:
            return None
        timeout = self._timeouts.start(seconds)
        timeout.on_timeout = connection.time_out
        self._in_flight += 1
        exchange = _PooledExchange(self, origin, connection, timeout, ended)
        try:
            idle_timeout = _idle_timeout(request) if request.first_byte or request.idle else None
            connection.start(_head(request), request.body, max_bytes, exchange.complete, idle_timeout)
        except BaseException:
            self._end(timeout)
            raise
        return exchange

    def finish(self, exchange: "_PooledExchange") -> None:
        """Clean up after a request of `try_exchange_now` that has ended or was cancelled.

        Stop its timeout, and keep its connection for further requests or close it.
        """
        self._end(exchange.timeout)
        self._release(exchange.origin, exchange.connection)

    def _end(self, timeout: "Timeout") -> None:
        timeout.cancel()
        self._in_flight -= 1
        if self._is_retired:
            self._close_timers_if_done()

    def _release(self, origin: Origin, connection: BackendConnection) -> None:
        now = time.monotonic()
        if not connection.is_reusable or now >= connection.retire_at or self._is_retired:
            connection.abort()
            return
        self._idle[origin].append((connection, now))
        if self._sweeping is None:
            loop = asyncio.get_running_loop()
            self._sweeping = loop.call_later(_KEEPALIVE_SECONDS, self._sweep)

    async def retire(self) -> None:
        self._is_retired = True
        self._close_idle()
        self._close_timers_if_done()

    async def aclose(self) -> None:
        self._timeouts.close()
        self._close_idle()

    def _close_timers_if_done(self) -> None:
        """Cancel the timers for timeouts if `retire` was called and no request is in flight."""
        if self._is_retired and not self._in_flight:
            self._timeouts.close()

    def _close_idle(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for idle in self._idle.values():
            for connection, _ in idle:
                connection.abort()
        self._idle.clear()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._own_tls or ssl.create_default_context()

    def _idle_connection(self, origin: Origin) -> BackendConnection | None:
        idle, oldest = self._idle.get(origin), time.monotonic() - _KEEPALIVE_SECONDS
        while idle:
            connection, since = idle.pop()
            if connection.is_reusable and since > oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin, seconds: float) -> BackendConnection:
        """Open a connection to `origin`, and return it.

        Connecting must succeed within `seconds` and within the connect timeout of the transport.

        Raises:
            httpx.ConnectError: the connection failed.
            httpx.ConnectTimeout: the time limit was exceeded.
        """
        seconds = min(seconds, self._connect_seconds)
        try:
            async with asyncio.timeout(seconds):
                connection = await self._open_connection(origin)
                if origin.secure:
                    await connection.start_tls(self._tls, origin.host)
        except TimeoutError as error:
            raise _connect_timeout(seconds) from error
        except OSError as error:
            raise httpx.ConnectError(_describe_os_error(error)) from error
        connection.retire_at = time.monotonic() + random.uniform(*_MAX_AGE_SECONDS)
        return connection

    async def _open_connection(self, origin: Origin) -> BackendConnection:
        """Connect to a host, using its first address that responds. Raise OSError if no address responds.

        Addresses of the same IP version are tried in random order, so that connections are spread over all
        servers of the host.
        """
        found = await self._hosts.addresses(origin)
        preferred = found[0][0]  # the IP version that the system prefers
        addresses = random.sample(found, len(found))
        addresses.sort(key=lambda address: address[0] != preferred)
        connected = await aiohappyeyeballs.start_connection(  # pyright: ignore[reportUnknownMemberType]
            addresses, happy_eyeballs_delay=_HAPPY_EYEBALLS_DELAY
        )
        enable_tcp_keepalive(connected)
        _, connection = await asyncio.get_running_loop().create_connection(BackendConnection, sock=connected)
        return connection

    def _sweep(self) -> None:
        """Close connections that were idle for too long. A timer calls this."""
        self._sweeping = None
        oldest = time.monotonic() - _KEEPALIVE_SECONDS
        for origin, idle in list(self._idle.items()):
            while idle and idle[0][1] <= oldest:
                idle.popleft()[0].abort()
            if not idle:
                del self._idle[origin]
        if self._idle:
            loop = asyncio.get_running_loop()
            self._sweeping = loop.call_later(_KEEPALIVE_SECONDS / 2, self._sweep)


class Timeout(Struct, eq=False):
    """The timeout of one request. When the timeout expires, `on_timeout` is called once.

    If `cancel` is called first, the timeout does not expire. A timeout can expire while `on_timeout` is not
    set yet. Callers must therefore check that `expired` is False, and then set `on_timeout`.
    """

    siblings: "dict[Timeout, None]"  # running timeouts of the same duration, the next to expire first
    at: float
    on_timeout: Callable[[], None]
    expired: bool = False

    def cancel(self) -> None:
        self.siblings.pop(self, None)


class TimeoutWheel:
    """A starter of timeouts for requests.

    Timeouts with the same duration share one timer of the event loop, to save CPU time.
    """

    def __init__(self) -> None:
        self._running: dict[float, dict[Timeout, None]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def start(self, seconds: float) -> Timeout:
        """Start a timeout that expires after `seconds`, and return it.

        The caller sets `Timeout.on_timeout` to the function to call when the timeout expires. When the
        request has ended, the caller calls `Timeout.cancel`.
        """
        loop, running = asyncio.get_running_loop(), self._running.get(seconds)
        if running is None:
            running = self._running[seconds] = {}
        timeout = Timeout(running, loop.time() + seconds, _do_nothing)
        running[timeout] = None
        if seconds not in self._timers:
            self._timers[seconds] = loop.call_at(timeout.at, partial(self._expire, seconds))
        return timeout

    def close(self) -> None:
        """Cancel all timers. Timeouts that are still running then do not expire."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._running = {seconds: running for seconds, running in self._running.items() if running}

    def _expire(self, seconds: float) -> None:
        loop, running = asyncio.get_running_loop(), self._running[seconds]
        while (first := next(iter(running), None)) is not None and first.at <= loop.time():
            first.cancel()
            first.expired = True
            first.on_timeout()
        if first is not None:
            self._timers[seconds] = loop.call_at(first.at, partial(self._expire, seconds))
        elif self._running.get(seconds) is running:  # a callback may have called `close`
            del self._timers[seconds], self._running[seconds]


def _do_nothing() -> None:
    """Do nothing. This is the callback of a timeout while its request has no connection yet."""


class _PooledExchange(Struct, eq=False):
    """A request in flight on a pooled connection. The callback `ended` gets its response or error."""

    transport: PooledTransport
    origin: Origin
    connection: BackendConnection
    timeout: Timeout
    ended: OnComplete

    def complete(self, response: BackendResponse | Exception) -> None:
        self.transport.finish(self)
        self.ended(response)

    def cancel(self) -> None:
        self.connection.abort()
        self.transport.finish(self)


def enable_tcp_keepalive(connected: socket.socket) -> None:
    """Turn on TCP keep-alive for a connected socket, to detect that the other host is no longer reachable."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_KEEPALIVE_OPTIONS.items():
        option: int | None = getattr(socket, name, None)  # not every operating system has all options
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _connect_timeout(seconds: float) -> httpx.ConnectTimeout:
    return httpx.ConnectTimeout(f"no connection within {seconds:g} s")


def _describe_os_error(error: OSError) -> str:
    """Return a description of the error without numbers and addresses, because tenants can read it."""
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, (socket.gaierror, ssl.SSLError)) or error.errno is None:
        is_of_many = str(error).startswith("Multiple exceptions")
        return "none of its addresses answers" if is_of_many else error.strerror or str(error)
    return os.strerror(error.errno)


def _idle_timeout(request: BackendRequest) -> IdleTimeout:
    return IdleTimeout(request.first_byte, request.idle)


def _head(request: BackendRequest) -> bytes:
    target, body = request.target, request.body
    length = b"\r\ncontent-length: %d" % len(body) if body else b""
    parts = request.method, target.path, target.authority
    own_headers = b"".join([HEADER_LINE % header for header in request.headers])
    headers = request.shared_headers.encoded, own_headers
    return b"%b %b HTTP/1.1\r\nhost: %b%b%b%b\r\n\r\n" % (*parts, *headers, length)
