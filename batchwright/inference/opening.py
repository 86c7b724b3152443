"""open_engine(): the engine that the settings ask for."""

import ssl

import httpx

from batchwright.inference.engine import Engine
from batchwright.inference.httpx_engine import HttpxEngine
from batchwright.inference.socket_engine import SocketEngine
from batchwright.settings import Settings

_SPARE_CONNECTIONS = 8  # for the registry's questions
_KEEPALIVE_SECONDS = 4.0


def open_engine(
    settings: Settings, tls: ssl.SSLContext | None = None, connect_seconds: float | None = None
) -> Engine:
    """The engine of `settings.http_engine`; it opens connections when it is used.

    `tls` and `connect_seconds` are a backend's own, where it has some.
    """
    wanted = connect_seconds or settings.connect_timeout_seconds
    # Connecting must time out as connecting, also where the whole request has hardly more time.
    connect = min(wanted, settings.request_timeout_seconds * 0.9)
    if settings.http_engine == "socket":
        return SocketEngine(connect_seconds=connect, tls=tls)
    connections = settings.global_in_flight + _SPARE_CONNECTIONS
    limits = httpx.Limits(
        max_connections=connections,
        max_keepalive_connections=connections,
        keepalive_expiry=_KEEPALIVE_SECONDS,
    )
    transport = httpx.AsyncHTTPTransport(verify=tls or True, limits=limits, retries=0)
    return HttpxEngine(transport, connect_seconds=connect)
