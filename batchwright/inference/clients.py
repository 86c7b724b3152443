"""The clients of a process: backends with equal settings share one, and its pool (S0-36)."""

import logging
import ssl
from collections.abc import Callable

from batchwright.contracts.registry import BackendConfig
from batchwright.inference.client import InferenceClient
from batchwright.inference.engine import Engine
from batchwright.inference.opening import open_engine
from batchwright.inference.trust import TlsUnreadable, Trust, has_tls
from batchwright.settings import Settings

logger = logging.getLogger(__name__)


Opens = Callable[[Settings, ssl.SSLContext | None, float | None], Engine]
Tells = Callable[[BackendConfig, str], None]  # a backend cannot be asked, and why


def _log(backend: BackendConfig, error: str) -> None:
    logger.error("a backend cannot be asked", extra={"backend": backend.url, "error": error})


class Clients:
    """Made as backends need them; keys and certificates are followed by `renew`."""

    def __init__(self, settings: Settings, opens: Opens = open_engine, *, tells: Tells = _log) -> None:
        self._settings, self._opens, self._tells = settings, opens, tells
        self._clients: dict[str, InferenceClient] = {}
        self._engines: dict[str, Engine] = {}
        self._trusts: dict[str, Trust] = {}
        self._unusable: dict[str, BackendConfig] = {}  # those whose certificates were never readable

    def of(self, backend: BackendConfig) -> InferenceClient:
        """The one of all backends that differ from this in weight and model only."""
        key = client_key(backend)
        found = self._clients.get(key)
        if found is None:
            found = self._clients[key] = self._made(backend)
            if found.problem:
                self._tells(backend, found.problem)
        return found

    def renew(self) -> None:
        """Reads keys and certificates again; what cannot be read stays as it was, and is logged once."""
        for client in self._clients.values():
            client.renew_key()
        for trust in self._trusts.values():
            try:
                if trust.renew():
                    logger.info("certificates for a backend were taken up")
            except TlsUnreadable as error:
                logger.error("certificates for a backend are kept as they were", extra={"error": str(error)})
        for key, backend in list(self._unusable.items()):
            self._try_again(key, backend)

    async def aclose(self) -> None:
        for engine in self._engines.values():
            await engine.aclose()

    def _made(self, backend: BackendConfig) -> InferenceClient:
        try:
            return InferenceClient(self._engine(backend), self._settings, backend)
        except TlsUnreadable as error:
            self._unusable[client_key(backend)] = backend
            return InferenceClient(self._opened("", None, None), self._settings, backend, problem=str(error))

    def _try_again(self, key: str, backend: BackendConfig) -> None:
        try:
            engine = self._engine(backend)
        except TlsUnreadable:
            return
        del self._unusable[key]
        self._clients[key].use(engine)
        logger.info("a backend can be asked now", extra={"backend": backend.url})

    def _engine(self, backend: BackendConfig) -> Engine:
        """Of equal certificates and patience."""
        if not has_tls(backend):
            return self._opened(f"{backend.connect_timeout}", None, backend.connect_timeout)
        fields = {
            "connect_timeout",
            "tls_insecure_skip_verify",
            "tls_ca_cert_file",
            "tls_client_cert_file",
            "tls_client_key_file",
        }
        key = backend.model_dump_json(include=fields)
        if key not in self._trusts:
            self._trusts[key] = Trust(backend)
        return self._opened(key, self._trusts[key].context, backend.connect_timeout)

    def _opened(self, key: str, tls: ssl.SSLContext | None, connect_seconds: float | None) -> Engine:
        found = self._engines.get(key)
        if found is None:
            found = self._engines[key] = self._opens(self._settings, tls, connect_seconds)
        return found


def client_key(backend: BackendConfig) -> str:
    said = backend.model_dump_json(exclude={"weight", "model", "retries", "limits"})
    return f"{type(backend).__name__} {said}"
