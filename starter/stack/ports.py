"""TCP ports on the loopback address."""

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from starter.stack.errors import StackError

LOOPBACK = "127.0.0.1"
# Below the ports that Linux and macOS give to outgoing connections: one of those could take a port
# between our look at it and the server's bind, or while a killed server is being started again.
_FIRST, _LAST = 20_000, 32_000
_TRIES = 200
_reserved: list[int] = []  # open locks, for as long as the process lives


def free_port() -> int:
    """A port nobody listens on now, and that no other call gives away while this process lives.

    Its server listens seconds later: another stack that starts meanwhile must not choose it too.
    """
    for _ in range(_TRIES):
        port = random.randint(_FIRST, _LAST)
        if is_free(port) and _reserve(port):
            return port
    raise StackError(f"No free TCP port was found between {_FIRST} and {_LAST} on {LOOPBACK}.")


def _reserve(port: int) -> bool:
    """Whether no living process has reserved it; the lock of an ended one is gone with it."""
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
    """Whether a server could listen on `port`; connections of an ended one that linger do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def claim(ports: Mapping[str, int]) -> list[int]:
    """The ports of these options, a free one for each 0.

    Raises:
        StackError: some are taken; names them all, with the options that are the remedy.
    """
    taken = {option: port for option, port in ports.items() if port and not is_free(port)}
    if len(taken) == 1:
        ((option, port),) = taken.items()
        raise StackError(f"Port {port} is in use: choose another with {option} (0: a free one).")
    if taken:
        *others, last = (str(port) for port in taken.values())
        options = " ".join(f"{option} 0" for option in taken)
        raise StackError(
            f"Ports {', '.join(others)} and {last} are in use: choose others, or free ones with {options}."
        )
    return [port or free_port() for port in ports.values()]
