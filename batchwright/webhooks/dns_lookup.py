"""Look up the addresses of hosts that tenants have chosen, in threads that only these lookups use.

If a name server does not answer, the lookup occupies a thread for many seconds. If the threads were shared,
other work would have to wait for a free thread.
"""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

from batchwright.rules.webhooks.ssrf_rules import Address, Network, check_address

# A worker makes 50 attempts at once, each for at most 15 s. A silent name server occupies a thread for up to
# 30 s.
_THREADS = 100
_LOOKUP_SECONDS = 5.0


class DnsLookup:
    """A lookup of hosts' addresses with the system's resolver, without a cache."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="webhook-hosts")

    async def addresses(self, host: str, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[Address]:
        """Return the addresses of a host. Raise OSError if no address is found."""

        def look_up() -> list[Address]:
            try:
                found = socket.getaddrinfo(host, None, family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            except UnicodeError as error:  # a label of the name is empty or too long
                raise OSError(str(error)) from error
            return [ip_address(str(each[4][0]).partition("%")[0]) for each in found]

        return await asyncio.get_running_loop().run_in_executor(self._threads, look_up)

    async def check_host(self, host: str, allowed: Sequence[Network]) -> None:
        """Check that all addresses of a host are public or in one of the `allowed` networks.

        Only the present addresses are checked. The host may have other addresses later.

        Raises:
            ValueError: the host has a forbidden address, or was not found. The message is the same in both
                cases. Otherwise a tenant could find out the names of the operator's hosts.
        """
        try:
            async with asyncio.timeout(_LOOKUP_SECONDS):
                addresses = await self.addresses(host)
            for address in addresses:
                check_address(address, allowed)
        except (OSError, ValueError):  # TimeoutError is an OSError
            problem = "was not found, or has an address that is not a public one"
            raise ValueError(f"its host {host} {problem}") from None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
