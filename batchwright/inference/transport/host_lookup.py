"""Look up the addresses of backends' hosts, in threads that only these lookups use.

If no name server answers, a lookup occupies its thread for many seconds, even if its caller no longer waits.
The event loop (uvloop) has four threads for lookups. If they were used, the name of a single backend could
stop all new connections of the process: to other backends, to the database and to object storage.
"""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread

from batchwright.inference.transport.base import Origin

# Result of `socket.getaddrinfo`: family, type, protocol, canonical name, address.
AddressInfo = tuple[
    socket.AddressFamily,
    socket.SocketKind,
    int,
    str,
    tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes],
]


class HostLookup:
    """A lookup of hosts' addresses with the system's resolver, without a cache.

    Concurrent callers share one lookup of an origin. So the number of hosts limits the number of threads.
    """

    def __init__(self) -> None:
        self._running: dict[Origin, asyncio.Future[Sequence[AddressInfo]]] = {}

    async def addresses(self, origin: Origin) -> Sequence[AddressInfo]:
        """Return the addresses of the host of `origin`. Raise OSError if no address is found."""
        lookup = self._running.get(origin)
        if lookup is None:
            lookup = self._running[origin] = self._start(origin)
        return await asyncio.shield(lookup)  # other callers may wait for the same lookup

    def _start(self, origin: Origin) -> "asyncio.Future[Sequence[AddressInfo]]":
        loop = asyncio.get_running_loop()
        lookup: asyncio.Future[Sequence[AddressInfo]] = loop.create_future()

        def end(found: Sequence[AddressInfo], error: Exception | None) -> None:
            del self._running[origin]
            if error is None:
                lookup.set_result(found)
            else:
                lookup.set_exception(error)
                lookup.exception()  # retrieved, so that asyncio does not log it if no caller waits any longer

        def look_up() -> None:
            found: Sequence[AddressInfo] = ()
            error: Exception | None = None
            try:
                found = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
            except UnicodeError:  # a label of the name is empty or too long
                error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            except Exception as raised:  # an unknown error must reach the callers, too
                error = raised
            with suppress(RuntimeError):  # the loop may be closed
                loop.call_soon_threadsafe(end, found, error)

        try:
            Thread(target=look_up, name="backend-host", daemon=True).start()
        except RuntimeError as error:
            raise OSError("the system starts no more threads") from error
        return lookup
