"""Limits how many bytes an API process keeps in memory for clients and backends."""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

from batchwright.api.errors import no_room

_MAX_BYTES = 256 * 1024 * 1024  # half of the memory limit in the Helm chart
_MAX_BYTES_PER_TENANT = _MAX_BYTES // 2


class HeldBytes:
    """A limit for the bytes that this process keeps in memory for clients and backends.

    A process has one object of this class. The following bytes count together:

    - bodies of calls (requests that clients send without a batch) and of callbacks from backends
    - answers from backends
    - downloads
    - the first line of an upload, and a request of a message batch, until the process has received it all

    Attributes:
        limit: maximum for all tenants together, in bytes.
        limit_per_tenant: maximum for each tenant, in bytes.
    """

    def __init__(self, largest: int) -> None:
        """Create two limits: one for all tenants together, and one for each tenant.

        Args:
            largest: maximum size of one body or answer in bytes. Both limits are at least twice this size, so
                that a call and its answer always fit.
        """
        self.limit, self.limit_per_tenant = (
            max(_MAX_BYTES, 2 * largest),
            max(_MAX_BYTES_PER_TENANT, 2 * largest),
        )
        self._held = Counter[str]()  # bytes by tenant

    @contextmanager
    def counted(self, tenant: str) -> Generator[Callable[[int], None]]:
        """Context manager that yields a function `count(size)`, which counts bytes of the tenant.

        The function adds `size` bytes; a negative `size` subtracts bytes. If a limit would be exceeded, the
        function counts nothing and raises ApiError (429). When the `with` block ends, the counted bytes are
        subtracted.
        """
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            own, all = self._held[tenant] + size, self._held.total() + size
            if size > 0 and (own > self.limit_per_tenant or all > self.limit):
                raise no_room(
                    "No room: this process holds too many bytes of calls, answers and downloads. Try again "
                    "later."
                )
            self._held[tenant] += size
            counted += size

        try:
            yield count
        finally:
            self._held[tenant] -= counted
            if not self._held[tenant]:
                del self._held[tenant]
