"""Creates the clients of backends in one process, and the transports that hold the clients' connections.

Backends with equal settings share a client. Clients with equal TLS and connect settings share a transport.
"""

import logging
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from weakref import WeakSet

import httpx

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.inference.backend_client import InferenceClient
from batchwright.inference.transport.base import Transport
from batchwright.inference.transport.connection_pool import PooledTransport
from batchwright.inference.transport.httpx_transport import HttpxTransport
from batchwright.inference.transport.tls import InvalidTlsFiles, TlsContext, needs_tls_context
from batchwright.settings import Settings

logger = logging.getLogger(__name__)

_SPARE_CONNECTIONS = 8  # for model lists and probes
_KEEPALIVE_SECONDS = 4.0


def open_transport(
    settings: Settings, tls: ssl.SSLContext | None = None, connect_seconds: float | None = None
) -> Transport:
    """Create a transport, which opens connections to backends and sends requests over them.

    `settings.http_engine` selects the kind of transport. No connection is opened before the first request.

    Args:
        tls: the TLS context of a backend with its own certificates; None to use the system's certificate
            authorities.
        connect_seconds: the connect timeout that is configured for the backend; None to use the timeout in
            the settings.
    """
    connect = connect_seconds or settings.connect_timeout_seconds
    if settings.http_engine == "socket":
        return PooledTransport(connect_seconds=connect, tls=tls)
    connections = settings.global_in_flight + _SPARE_CONNECTIONS
    limits = httpx.Limits(
        max_connections=connections,
        max_keepalive_connections=connections,
        keepalive_expiry=_KEEPALIVE_SECONDS,
    )
    transport = httpx.AsyncHTTPTransport(verify=tls or True, limits=limits, retries=0)
    return HttpxTransport(transport, connect_seconds=connect)


TransportFactory = Callable[[Settings, ssl.SSLContext | None, float | None], Transport]
ProblemHandler = Callable[[BackendConfig, str], None]  # called with an unusable backend and the reason
_TLS_FIELDS = {
    "connect_timeout",
    "tls_insecure_skip_verify",
    "tls_ca_cert_file",
    "tls_client_cert_file",
    "tls_client_key_file",
}


def _log_problem(backend: BackendConfig, error: str) -> None:
    logger.error("backend is unusable", extra={"backend": backend.url, "error": error})


@dataclass
class _SharedTransport:
    """A transport (an owner of connections) that several clients may use.

    `clients` has the `client_key` of each of these clients.
    """

    transport: Transport
    connect_seconds: float | None
    tls: TlsContext | None
    clients: set[str] = field(default_factory=set[str])


class ClientPool:
    """The clients of all backends of a process. The pool also reloads their API keys and certificates.

    Clients send requests through transports, which hold the connections. A transport that no client needs any
    longer is closed when its last request has ended.
    """

    def __init__(
        self,
        settings: Settings,
        open_transport: TransportFactory = open_transport,
        *,
        on_problem: ProblemHandler = _log_problem,
        of_batches: bool = True,
    ) -> None:
        """Create an empty pool.

        Args:
            settings: settings of the process.
            open_transport: creates transports.
            on_problem: called if a backend cannot be used.
            of_batches: False if the process sends only interactive calls (requests outside of batches). The
                requests of its clients then do not get the headers that mark lines of batches.
        """
        self._of_batches = of_batches
        self._settings, self._open_transport, self._on_problem = settings, open_transport, on_problem
        self._clients: dict[str, InferenceClient] = {}
        self._transports: dict[str, _SharedTransport] = {}
        self._unusable: dict[str, BackendConfig] = {}  # backends whose certificates could never be read
        self._retired: WeakSet[Transport] = WeakSet()

    def client_for(self, backend: BackendConfig) -> InferenceClient:
        """Return the client of a backend. Create the client if it does not exist yet.

        Backends with equal connection settings share a client, even if their weights or priorities differ.
        """
        key = client_key(backend)
        found = self._clients.get(key)
        if found is None:
            found = self._clients[key] = self._create(key, backend)
            if found.problem:
                self._on_problem(backend, found.problem)
        return found

    async def retain_only(self, keys: Collection[str]) -> None:
        """Drop the clients of backends that are no longer configured.

        `keys` contains the result of `client_key` for each backend that is still configured.
        """
        for key in self._clients.keys() - keys:
            del self._clients[key]
            self._unusable.pop(key, None)
            for shared in self._transports.values():
                shared.clients.discard(key)
        unused = [name for name, shared in self._transports.items() if not shared.clients]
        for shared in [self._transports.pop(name) for name in unused]:
            await self._retire(shared.transport)

    async def reload_credentials(self) -> None:
        """Reload the API keys and certificates of all clients.

        If a key or certificate cannot be read, the old key or certificate stays in use.
        """
        for client in self._clients.values():
            client.reload_key()
        for shared in list(self._transports.values()):
            try:
                if shared.tls is not None and shared.tls.reload():
                    await self._replace(shared, shared.tls.context)
                    logger.info("backend certificates were reloaded")
            except InvalidTlsFiles as error:
                logger.error("backend certificates could not be reloaded", extra={"error": str(error)})
        for key, backend in list(self._unusable.items()):
            self._retry_unusable(key, backend)

    async def aclose(self) -> None:
        for transport in [*(shared.transport for shared in self._transports.values()), *self._retired]:
            await transport.aclose()

    def _create(self, key: str, backend: BackendConfig) -> InferenceClient:
        try:
            transport = self._transport_for(key, backend).transport
            return InferenceClient(transport, self._settings, backend, of_batches=self._of_batches)
        except InvalidTlsFiles as error:
            self._unusable[key] = backend
            unused = self._shared("", None, None)
            unused.clients.add(key)
            return InferenceClient(
                unused.transport,
                self._settings,
                backend,
                problem=str(error),
                of_batches=self._of_batches,
            )

    def _retry_unusable(self, key: str, backend: BackendConfig) -> None:
        try:
            shared = self._transport_for(key, backend)
        except InvalidTlsFiles:
            return
        del self._unusable[key]
        self._clients[key].set_transport(shared.transport)
        logger.info("backend is usable again", extra={"backend": backend.url})

    async def _replace(self, shared: _SharedTransport, context: ssl.SSLContext) -> None:
        """Give all clients of a shared transport a new transport with the TLS context `context`.

        The old transport gets no new requests. Its requests in flight complete on the old connections.
        """
        old = shared.transport
        shared.transport = self._open_transport(self._settings, context, shared.connect_seconds)
        for key in shared.clients:
            self._clients[key].set_transport(shared.transport)
        await self._retire(old)

    async def _retire(self, transport: Transport) -> None:
        self._retired.add(transport)
        await transport.retire()

    def _transport_for(self, key: str, backend: BackendConfig) -> _SharedTransport:
        """Return the transport (which holds the connections) for the client that `key` identifies.

        Raises:
            InvalidTlsFiles: a certificate or key file of the backend cannot be used.
        """
        if not needs_tls_context(backend):
            shared = self._shared(f"{backend.connect_timeout}", None, backend.connect_timeout)
        else:
            name = backend.model_dump_json(include=_TLS_FIELDS)
            tls = None if name in self._transports else TlsContext(backend)
            shared = self._shared(name, tls, backend.connect_timeout)
        shared.clients.add(key)
        return shared

    def _shared(self, name: str, tls: TlsContext | None, connect_seconds: float | None) -> _SharedTransport:
        found = self._transports.get(name)
        if found is None:
            transport = self._open_transport(self._settings, tls.context if tls else None, connect_seconds)
            found = self._transports[name] = _SharedTransport(transport, connect_seconds, tls)
        return found


def client_key(backend: BackendConfig) -> str:
    """Return the text that identifies a backend's client in the pool. It contains no API key.

    Backends with equal client settings get the same text, and so share a client.
    """
    settings = backend.model_dump_json(
        exclude={"weight", "model", "in_flight", "priority", "retries", "limits", "prices", "any_model"}
    )
    return f"{type(backend).__name__} {settings}"
