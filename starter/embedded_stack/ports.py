"""Chooses free TCP ports on the loopback address."""

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from batchwright.starter.embedded_stack.errors import StackError

LOOPBACK = "127.0.0.1"
# Below the range that Linux and macOS use for outgoing connections. Such a connection could take a port
# between the check and the server's bind, or while a killed server is being restarted.
_FIRST, _LAST = 20_000, 32_000
_ATTEMPTS = 200
_reserved: list[int] = []  # file descriptors of the locks, open until this process ends


def free_port() -> int:
    """Return a free port, and reserve it until this process ends, so that no other stack chooses it."""
    for _ in range(_ATTEMPTS):
        port = random.randint(_FIRST, _LAST)
        if is_free(port) and _reserve(port):
            return port
    raise StackError(f"No free TCP port was found between {_FIRST} and {_LAST} on {LOOPBACK}.")


def _reserve(port: int) -> bool:
    """Reserve a port for this process with a lock file. Return False if another process has reserved it."""
    folder = Path(tempfile.gettempdir()) / f"batchwright-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    _reserved.append(lock)
    return True


def is_free(port: int) -> bool:
    """Return True if a server could listen on this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def claim_ports(ports: Mapping[str, int]) -> list[int]:
    """Check that these ports are free, and return them in the same order.

    Each 0 is replaced by a free port.

    Args:
        ports: the port for each command-line option, such as `--ui-port`; 0 for any free port.

    Raises:
        StackError: some ports are in use. The message contains these ports and their options.
    """
    taken = {option: port for option, port in ports.items() if port and not is_free(port)}
    if len(taken) == 1:
        ((option, port),) = taken.items()
        raise StackError(f"Port {port} is in use: choose another with {option} (0 means any free port).")
    if taken:
        *others, last = (str(port) for port in taken.values())
        options = " ".join(f"{option} 0" for option in taken)
        raise StackError(
            f"Ports {', '.join(others)} and {last} are in use: choose others, or free ones with {options}."
        )
    return [port or free_port() for port in ports.values()]
