"""TLS context of one backend: certificate authorities and client certificate, reloaded when files change."""

import ssl
from pathlib import Path

from batchwright.contracts.model_registry.backend_config import BackendConfig


class InvalidTlsFiles(Exception):
    """Raised if a certificate or key file cannot be used. The message names the file."""


class TlsContext:
    """The TLS context of one backend, created from certificate and key files.

    When a file has changed, `reload` creates a new context.
    """

    def __init__(self, backend: BackendConfig) -> None:
        """Load the backend's certificate and key files. Raise InvalidTlsFiles if one cannot be used."""
        self._backend = backend
        self._stamps = self._file_stamps()
        self.context = self._create()

    def reload(self) -> bool:
        """Create a new TLS context if a file has changed. Return True if a new context was created.

        Raises:
            InvalidTlsFiles: a changed file cannot be used. The old context stays in use. Later calls return
                False until a file changes again.
        """
        stamps = self._file_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        self.context = self._create()
        return True

    def _create(self) -> ssl.SSLContext:
        backend = self._backend
        context = ssl.create_default_context()
        if backend.tls_insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        try:
            if backend.tls_ca_cert_file:
                context.load_verify_locations(backend.tls_ca_cert_file)
            if backend.tls_client_cert_file:
                context.load_cert_chain(backend.tls_client_cert_file, backend.tls_client_key_file)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (name for name, _ in self._file_stamps())))
            raise InvalidTlsFiles(
                f"the certificates of {backend.url} ({files}) cannot be used: {error}"
            ) from error
        return context

    def _file_stamps(self) -> list[tuple[str, tuple[int, int] | None]]:
        backend = self._backend
        names = (backend.tls_ca_cert_file, backend.tls_client_cert_file, backend.tls_client_key_file)
        return [(name, _file_stamp(Path(name))) for name in names if name]


def needs_tls_context(backend: BackendConfig) -> bool:
    """Return True if the backend has its own TLS settings, False if it uses the system's settings."""
    return bool(backend.tls_insecure_skip_verify or backend.tls_ca_cert_file or backend.tls_client_cert_file)


def _file_stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
