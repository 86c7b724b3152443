"""Builds the headers of requests to one backend, including the API key.

Some headers are always the same, some are set by the registry (the operator's list of models and backends),
and some are headers that the caller sent with the batch.
"""

from collections.abc import Sequence

from batchwright.contracts.api_objects.anthropic import ANTHROPIC_VERSION_HEADER, DEFAULT_ANTHROPIC_VERSION
from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import GatewayConfig
from batchwright.contracts.temporal_payloads.batch import Caller
from batchwright.contracts.terms import Endpoint
from batchwright.inference.transport.base import Header, SharedHeaders
from batchwright.settings import Settings
from batchwright.settings.registry_file import SecretUnreadable, api_key

_DISPATCHER = "dispatcher"  # header value for backends with `send_dispatch_header`
_BATCH_HEADERS: list[Header] = [
    (b"content-type", b"application/json"),
    (b"accept", b"application/json"),
    (b"accept-encoding", b"identity"),
]
_INTERACTIVE_HEADERS: list[Header] = [
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
    (b"accept-encoding", b"identity"),
]


class BackendHeaders:
    """Headers that all requests to one backend have in common. They change when a new API key is read.

    Attributes:
        shared: headers of every request that is not interactive. The client of an interactive request waits
            for the answer.
        key_changes: number of times that a new API key was read.
    """

    def __init__(self, settings: Settings, backend: BackendConfig | None, *, of_batches: bool) -> None:
        """Create the headers. The API key of the backend is read later, by `reload_key`.

        Args:
            backend: the backend's configuration in the registry (the operator's list of models and backends);
                None to use only the settings of the process.
            of_batches: True if the headers in `shared` show that a request belongs to a batch. False for a
                process that sends only interactive calls (requests outside of batches).
        """
        self._backend, self._secrets_dir = backend, settings.secrets_dir
        self._common = [*_BATCH_HEADERS, *_registry_headers(settings, backend, of_batches=of_batches)]
        self._interactive = [*_INTERACTIVE_HEADERS, *_registry_headers(settings, backend, of_batches=False)]
        # A backend in the registry gets only the key that its entry names, never the default key.
        listed = backend is None or (isinstance(backend, GatewayConfig) and settings.registry is None)
        self._key = settings.backend_api_key if listed else ""
        self.key_changes = 0
        self.shared = SharedHeaders([*self._common, *self._key_headers])

    @property
    def has_key(self) -> bool:
        return bool(self._key)

    @property
    def interactive(self) -> list[Header]:
        """Headers of an interactive request, which is a request outside of batches whose client waits."""
        return [*self._interactive, *self._key_headers]

    def without_own(self, extra: Sequence[Header]) -> list[Header]:
        """Return the headers in `extra` whose names are not in `shared`."""
        own = {name for name, _ in self.shared.headers}
        return [header for header in extra if header[0] not in own]

    def reload_key(self) -> str:
        """Read the backend's API key again. If this fails, keep the old key.

        Return an empty string if there is a key, old or new. Otherwise, return why the key cannot be read.
        """
        backend = self._backend
        if backend is None or not (backend.api_key_name or backend.api_key_file or backend.api_key_env):
            return ""
        try:
            key = api_key(backend, self._secrets_dir)
        except SecretUnreadable as error:
            return "" if self._key else str(error)
        if key != self._key:
            self._key = key
            self.key_changes += 1
            self.shared = SharedHeaders([*self._common, *self._key_headers])
        return ""

    @property
    def _key_headers(self) -> list[Header]:
        """The header with the backend's API key; empty if there is no key."""
        if not self._key:
            return []
        name = "authorization" if self._backend is None else self._backend.api_key_header
        value = f"Bearer {self._key}" if name == "authorization" else self._key
        return [(name.encode(), value.encode())]


def forwarded_headers(endpoint: Endpoint, caller: Caller) -> list[Header]:
    """Return the headers of the caller that are sent to the backend with each line of the batch.

    A line for `/v1/messages` always has the header `anthropic-version`, which Anthropic's API requires.
    """
    headers = caller.headers
    if endpoint is Endpoint.MESSAGES:
        headers = {ANTHROPIC_VERSION_HEADER: DEFAULT_ANTHROPIC_VERSION, **headers}
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _registry_headers(settings: Settings, backend: BackendConfig | None, *, of_batches: bool) -> list[Header]:
    """Return the backend's headers in the registry (the operator's list of models and backends).

    The names of the headers are in lower case.

    Args:
        of_batches: True to include the headers that mark requests of batches. These are the backend's
            `batch_headers`. If the backend has `send_dispatch_header`, the header that the setting
            `dispatch_header` names is included, too. False for interactive calls (requests outside of
            batches).
    """
    if backend is None:
        return []
    added = {name.lower(): value for name, value in backend.headers.items()}
    dispatch_header = settings.dispatch_header.lower()
    if of_batches:
        added |= {name.lower(): value for name, value in backend.batch_headers.items()}
        if backend.send_dispatch_header:
            added[dispatch_header] = _DISPATCHER
    else:
        added.pop(dispatch_header, None)
    return [(name.encode(), value.encode()) for name, value in added.items()]
