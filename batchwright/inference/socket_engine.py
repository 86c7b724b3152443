"""The engine over sockets of our own: a pool of kept connections for each origin, the last used first."""

import asyncio
import socket
import ssl
import time
from collections import defaultdict, deque
from functools import cached_property

import httpx
from msgspec import Struct

from batchwright.inference.connection import Connection, Silence
from batchwright.inference.deadlines import Deadlines, Watch
from batchwright.inference.engine import Answer, Ended, Engine, Exchange, Origin, Request, lines_of

# Below the 5 s after which common servers close an idle connection: a POST that meets the closing is lost.
_KEEPALIVE_SECONDS = 4.0
# An answer may take minutes: a host that is gone meanwhile is noticed within one, by probes that its system
# answers. Where nothing is set here the first one goes out after two hours.
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

Kept = tuple[Connection, float]  # since when, monotonic


class SocketEngine(Engine):
    """As many connections as exchanges at once; the callers' permits bound those. No proxies."""

    def __init__(self, *, connect_seconds: float, tls: ssl.SSLContext | None = None) -> None:
        """`tls` is for https; without it, the system's authorities are trusted."""
        self._connect_seconds = connect_seconds
        self._own_tls = tls
        self._kept: defaultdict[Origin, deque[Kept]] = defaultdict(deque)
        self._sweeping: asyncio.TimerHandle | None = None
        self._deadlines = Deadlines()
        self._under_way = 0
        self._is_retired = False

    async def exchange(self, request: Request, *, most_bytes: int, seconds: float) -> Answer:
        origin = request.target.origin
        watch = self._deadlines.start(seconds)
        self._under_way += 1
        try:
            connection = self._kept_one(origin) or await self._connect(origin)
            if watch.is_over:  # it went by while connecting
                connection.abort()
                raise TimeoutError
            watch.overdue = connection.overdue
            silence = _silence(request) if request.first_byte or request.idle else None
            answer = await connection.exchange(_head(request), request.body, most_bytes, silence)
        finally:
            self._ended(watch)
        self._put_away(origin, connection)
        return answer

    def begin(self, request: Request, *, most_bytes: int, seconds: float, ended: Ended) -> Exchange | None:
        """On a kept connection, if there is one."""
        origin = request.target.origin
        connection = self._kept_one(origin)
        if connection is None:
            return None
        watch = self._deadlines.start(seconds)
        watch.overdue = connection.overdue
        self._under_way += 1
        exchange = _Exchange(self, origin, connection, watch, ended)
        try:
            silence = _silence(request) if request.first_byte or request.idle else None
            connection.begin(_head(request), request.body, most_bytes, exchange.over, silence)
        except BaseException:
            self._ended(watch)
            raise
        return exchange

    def let_go(self, exchange: "_Exchange") -> None:
        """It is over."""
        self._ended(exchange.watch)
        self._put_away(exchange.origin, exchange.connection)

    def _ended(self, watch: Watch) -> None:
        watch.end()
        self._under_way -= 1
        if self._is_retired:
            self._rest()

    def _put_away(self, origin: Origin, connection: Connection) -> None:
        if connection.is_reusable and not self._is_retired:
            self._keep(origin, connection)
        else:
            connection.abort()

    async def retire(self) -> None:
        self._is_retired = True
        self._close_kept()
        self._rest()

    async def aclose(self) -> None:
        self._deadlines.close()
        self._close_kept()

    def _rest(self) -> None:
        """A retired engine that nothing waits for leaves nothing behind in the loop."""
        if self._is_retired and not self._under_way:
            self._deadlines.close()

    def _close_kept(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for kept in self._kept.values():
            for connection, _ in kept:
                connection.abort()
        self._kept.clear()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._own_tls or ssl.create_default_context()

    def _kept_one(self, origin: Origin) -> Connection | None:
        kept, oldest = self._kept.get(origin), time.monotonic() - _KEEPALIVE_SECONDS
        while kept:
            connection, since = kept.pop()
            if connection.is_reusable and since > oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        tls = self._tls if origin.secure else None
        try:
            async with asyncio.timeout(self._connect_seconds):
                transport, made = await loop.create_connection(Connection, origin.host, origin.port, ssl=tls)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection within {self._connect_seconds:g} s") from error
        except OSError as error:
            raise httpx.ConnectError(_words(error)) from error
        probe(transport.get_extra_info("socket"))
        return made

    def _keep(self, origin: Origin, connection: Connection) -> None:
        self._kept[origin].append((connection, time.monotonic()))
        if self._sweeping is None:
            loop = asyncio.get_running_loop()
            self._sweeping = loop.call_later(_KEEPALIVE_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Closes what was not used for long: the oldest are on the left."""
        self._sweeping = None
        oldest = time.monotonic() - _KEEPALIVE_SECONDS
        for origin, kept in list(self._kept.items()):
            while kept and kept[0][1] <= oldest:
                kept.popleft()[0].abort()
            if not kept:
                del self._kept[origin]
        if self._kept:
            loop = asyncio.get_running_loop()
            self._sweeping = loop.call_later(_KEEPALIVE_SECONDS / 2, self._sweep)


class _Exchange(Struct, eq=False):
    """One that nobody awaits."""

    engine: SocketEngine
    origin: Origin
    connection: Connection
    watch: Watch
    ended: Ended

    def over(self, answer: Answer | Exception) -> None:
        self.engine.let_go(self)
        self.ended(answer)

    def call_off(self) -> None:
        self.connection.abort()
        self.engine.let_go(self)


def probe(connected: socket.socket) -> None:
    """Has the connection's other end asked whether it is still there, for as long as it is silent."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        option: int | None = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _words(error: OSError) -> str:
    """Without Python's number and the address: tenants read it too."""
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    return error.strerror or str(error) or type(error).__name__


def _silence(request: Request) -> Silence:
    return Silence(request.first_byte, request.idle)


def _head(request: Request) -> bytes:
    target, body = request.target, request.body
    length = b"\r\ncontent-length: %d" % len(body) if body else b""
    place = request.method, target.path, target.authority
    headers = request.fixed.text, lines_of(request.headers)
    return b"%b %b HTTP/1.1\r\nhost: %b%b%b%b\r\n\r\n" % (*place, *headers, length)
