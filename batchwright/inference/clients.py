"""The clients of a process: backends with equal settings share one, and its pool (S0-36)."""

import logging
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from weakref import WeakSet

from batchwright.contracts.registry import BackendConfig
from batchwright.inference.client import InferenceClient
from batchwright.inference.engine import Engine
from batchwright.inference.opening import open_engine
from batchwright.inference.trust import TlsUnreadable, Trust, has_tls
from batchwright.settings import Settings

logger = logging.getLogger(__name__)


Opens = Callable[[Settings, ssl.SSLContext | None, float | None], Engine]
Tells = Callable[[BackendConfig, str], None]  # a backend cannot be asked, and why
_TLS_FIELDS = {
    "connect_timeout",
    "tls_insecure_skip_verify",
    "tls_ca_cert_file",
    "tls_client_cert_file",
    "tls_client_key_file",
}


def _log(backend: BackendConfig, error: str) -> None:
    logger.error("a backend cannot be asked", extra={"backend": backend.url, "error": error})


@dataclass
class _Pool:
    """Of equal certificates and patience; `clients` are the keys of those that use it."""

    engine: Engine
    connect_seconds: float | None
    trust: Trust | None = None
    clients: set[str] = field(default_factory=set[str])


class Clients:
    """Made as backends need them; keys and certificates are followed by `renew`.

    Engines are retired, not closed: whoever still asks a backend that is gone, or by certificates that are
    not in use any more, ends what was begun, and its connection with it.
    """

    def __init__(self, settings: Settings, opens: Opens = open_engine, *, tells: Tells = _log) -> None:
        self._settings, self._opens, self._tells = settings, opens, tells
        self._clients: dict[str, InferenceClient] = {}
        self._pools: dict[str, _Pool] = {}
        self._unusable: dict[str, BackendConfig] = {}  # those whose certificates were never readable
        self._retired: WeakSet[Engine] = WeakSet()

    def of(self, backend: BackendConfig) -> InferenceClient:
        """The one of all backends that differ from this in weight and model only."""
        key = client_key(backend)
        found = self._clients.get(key)
        if found is None:
            found = self._clients[key] = self._made(key, backend)
            if found.problem:
                self._tells(backend, found.problem)
        return found

    async def keep(self, keys: Collection[str]) -> None:
        """Lets go of all clients but these, of pools that none of these uses, and of whom they trusted."""
        for key in self._clients.keys() - keys:
            del self._clients[key]
            self._unusable.pop(key, None)
            for pool in self._pools.values():
                pool.clients.discard(key)
        unused = [name for name, pool in self._pools.items() if not pool.clients]
        for pool in [self._pools.pop(name) for name in unused]:
            await self._retire(pool.engine)

    async def renew(self) -> None:
        """Reads keys and certificates again; what cannot be read stays as it was, and is logged once."""
        for client in self._clients.values():
            client.renew_key()
        for pool in list(self._pools.values()):
            try:
                if pool.trust is not None and pool.trust.renew():
                    await self._replace(pool, pool.trust.context)
                    logger.info("certificates for a backend were taken up")
            except TlsUnreadable as error:
                logger.error("certificates for a backend are kept as they were", extra={"error": str(error)})
        for key, backend in list(self._unusable.items()):
            self._try_again(key, backend)

    async def aclose(self) -> None:
        for engine in [*(pool.engine for pool in self._pools.values()), *self._retired]:
            await engine.aclose()

    def _made(self, key: str, backend: BackendConfig) -> InferenceClient:
        try:
            return InferenceClient(self._pool(key, backend).engine, self._settings, backend)
        except TlsUnreadable as error:
            self._unusable[key] = backend
            nobody = self._opened("", None, None)
            nobody.clients.add(key)
            return InferenceClient(nobody.engine, self._settings, backend, problem=str(error))

    def _try_again(self, key: str, backend: BackendConfig) -> None:
        try:
            pool = self._pool(key, backend)
        except TlsUnreadable:
            return
        del self._unusable[key]
        self._clients[key].use(pool.engine)
        logger.info("a backend can be asked now", extra={"backend": backend.url})

    async def _replace(self, pool: _Pool, context: ssl.SSLContext) -> None:
        """Connections from now on use `context`; none from before is used for another request."""
        old = pool.engine
        pool.engine = self._opens(self._settings, context, pool.connect_seconds)
        for key in pool.clients:
            self._clients[key].use(pool.engine)
        await self._retire(old)

    async def _retire(self, engine: Engine) -> None:
        self._retired.add(engine)
        await engine.retire()

    def _pool(self, key: str, backend: BackendConfig) -> _Pool:
        """That of the client of that key. Raises TlsUnreadable."""
        if not has_tls(backend):
            pool = self._opened(f"{backend.connect_timeout}", None, backend.connect_timeout)
        else:
            name = backend.model_dump_json(include=_TLS_FIELDS)
            trust = None if name in self._pools else Trust(backend)
            pool = self._opened(name, trust, backend.connect_timeout)
        pool.clients.add(key)
        return pool

    def _opened(self, name: str, trust: Trust | None, connect_seconds: float | None) -> _Pool:
        found = self._pools.get(name)
        if found is None:
            engine = self._opens(self._settings, trust.context if trust else None, connect_seconds)
            found = self._pools[name] = _Pool(engine, connect_seconds, trust)
        return found


def client_key(backend: BackendConfig) -> str:
    said = backend.model_dump_json(exclude={"weight", "model", "retries", "limits"})
    return f"{type(backend).__name__} {said}"
