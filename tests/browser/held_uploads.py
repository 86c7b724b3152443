"""TCP proxy that holds back the rest of a large request until a test has seen what its beginning causes."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

_PIECE_BYTES = 64 * 1024


class HeldUploads:
    """Proxy in front of a server of this machine. It forwards the first `most` bytes of each connection.

    It forwards the rest after `release` was called. What the server sends is never held.
    """

    def __init__(self, port: int, most: int) -> None:
        self._target, self._most = port, most
        self._released = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def release(self) -> None:
        self._released.set()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                browser, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for pump in ((browser, server, self._most), (server, browser, None)):
                    threading.Thread(target=self._pump, args=pump, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, most: int | None) -> None:
        sent = 0
        with suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                if most is not None and sent > most:
                    self._released.wait()
                target.sendall(data)
                sent += len(data)
            target.shutdown(socket.SHUT_WR)


@contextmanager
def held_uploads(port: int, most: int) -> Generator[HeldUploads]:
    """Context manager that starts the proxy and closes it."""
    proxy = HeldUploads(port, most)
    try:
        yield proxy
    finally:
        proxy.release()
        proxy.close()
