"""A proxy that holds an upload back when its first half has passed, until the test releases the rest."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_PIECE_BYTES = 65_536
_MAX_SECONDS = 120


class HoldingProxy:
    """A TCP proxy in front of the API that stops a file upload halfway.

    If a connection begins with a request to `POST /ui/files`, the proxy forwards the first `passed_bytes`
    bytes immediately, and the rest when the test calls `release`.
    """

    def __init__(self, listener: socket.socket, target: tuple[str, int], passed_bytes: int) -> None:
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._listener, self._target, self._passed_bytes = listener, target, passed_bytes
        self._released = threading.Event()

    def release(self) -> None:
        self._released.set()

    def serve(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for source, sink in ((client, server), (server, client)):
                    pump = self._send_on if source is client else self._send_back
                    threading.Thread(target=pump, args=(source, sink), daemon=True).start()

    def _send_on(self, client: socket.socket, server: socket.socket) -> None:
        passed: int | None = None  # bytes of an upload
        with suppress(OSError):
            while piece := client.recv(_PIECE_BYTES):
                if piece.startswith(b"POST /ui/files"):
                    passed = 0
                if passed is not None:
                    passed += len(piece)
                    if passed > self._passed_bytes:
                        self._released.wait(_MAX_SECONDS)
                server.sendall(piece)
        _close(client, server)

    def _send_back(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while piece := server.recv(_PIECE_BYTES):
                client.sendall(piece)
        _close(client, server)


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextmanager
def holding_proxy(url: str, passed_bytes: int) -> Generator[HoldingProxy]:
    """Context manager that runs a proxy in front of `url`. See HoldingProxy for `passed_bytes`."""
    target = urlsplit(url)
    assert target.hostname is not None
    assert target.port is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = HoldingProxy(listener, (target.hostname, target.port), passed_bytes)
        threading.Thread(target=proxy.serve, daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.release()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
