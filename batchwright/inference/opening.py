"""open_engine(): the engine that the settings ask for."""

import httpx

from batchwright.inference.engine import Engine
from batchwright.inference.httpx_engine import HttpxEngine
from batchwright.inference.socket_engine import SocketEngine
from batchwright.settings import Settings

_SPARE_CONNECTIONS = 8  # for the registry's questions
_KEEPALIVE_SECONDS = 4.0


def open_engine(settings: Settings) -> Engine:
    """The engine of `settings.http_engine`; it opens connections when it is used."""
    # Connecting must time out as connecting, also where the whole request has hardly more time.
    connect = min(settings.connect_timeout_seconds, settings.request_timeout_seconds * 0.9)
    if settings.http_engine == "socket":
        return SocketEngine(connect_seconds=connect)
    connections = settings.global_in_flight + _SPARE_CONNECTIONS
    limits = httpx.Limits(
        max_connections=connections,
        max_keepalive_connections=connections,
        keepalive_expiry=_KEEPALIVE_SECONDS,
    )
    return HttpxEngine(httpx.AsyncHTTPTransport(limits=limits, retries=0), connect_seconds=connect)
