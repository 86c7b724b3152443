"""TLS to one backend: whom we trust, who we are; certificates are read again when their files change."""

import ssl
from pathlib import Path

from batchwright.contracts.registry import BackendConfig


class TlsUnreadable(Exception):
    """A certificate or key is not what it should be; the message says which."""


class Trust:
    """The context of what the files say. A change makes another: a context forgets no authority."""

    def __init__(self, backend: BackendConfig) -> None:
        """Raises TlsUnreadable."""
        self._backend = backend
        self._seen = self._files()
        self.context = self._made()

    def renew(self) -> bool:
        """Whether a file has changed, and was taken up. Raises TlsUnreadable, once a change."""
        seen = self._files()
        if seen == self._seen:
            return False
        self._seen = seen
        self.context = self._made()
        return True

    def _made(self) -> ssl.SSLContext:
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
            files = ", ".join(filter(None, (name for name, _ in self._files())))
            raise TlsUnreadable(
                f"the certificates of {backend.url} ({files}) cannot be used: {error}"
            ) from error
        return context

    def _files(self) -> list[tuple[str, tuple[int, int] | None]]:
        backend = self._backend
        names = (backend.tls_ca_cert_file, backend.tls_client_cert_file, backend.tls_client_key_file)
        return [(name, _stamp(Path(name))) for name in names if name]


def has_tls(backend: BackendConfig) -> bool:
    """Whether it asks for more than the system's authorities."""
    return bool(backend.tls_insecure_skip_verify or backend.tls_ca_cert_file or backend.tls_client_cert_file)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
