"""Check URLs that tenants send for webhooks and callbacks."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from batchwright.rules.tenants.attempt_limiter import AttemptLimiter
from batchwright.rules.webhooks.ssrf_rules import Network, check_url
from batchwright.webhooks.dns_lookup import DnsLookup

# Forbidden URLs that a tenant may send. Each lookup occupies a thread, for long if no server answers.
REFUSED_URLS_PER_MINUTE = 60
_ALLOWED_SECONDS = 10.0  # the addresses are checked again whenever a webhook is sent


class TooManyUrls(Exception):
    """An error that is raised if a tenant has sent too many forbidden URLs, or too many URLs at once.

    Attributes:
        seconds: number of seconds after which the tenant may send URLs again.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__(
            f"Too many webhook URLs were refused or are being checked. Try again in {seconds} s."
        )
        self.seconds = seconds


class _Host(NamedTuple):
    tenant: str
    name: str


class UrlChecker:
    """A checker for the URLs of webhooks, with a limit for the forbidden URLs that a tenant sends per minute.

    A process has one checker. If a tenant sends several URLs with the same host at the same time, the checker
    looks up the host's addresses only once. If all these addresses are allowed, the checker does not look up
    this host again for this tenant within ten seconds.
    """

    def __init__(self, networks: Sequence[Network]) -> None:
        """Create the checker.

        Args:
            networks: private networks to which webhooks may be sent, in addition to public addresses.
        """
        self._networks = networks
        self._lookup = DnsLookup()
        self._refused = AttemptLimiter(REFUSED_URLS_PER_MINUTE)
        self._checks: dict[_Host, asyncio.Task[None]] = {}  # running checks, and recent checks that succeeded

    async def check(self, url: str, tenant: str) -> None:
        """Check that webhooks may be sent to this URL, and to the addresses that its host has now.

        Raises:
            ValueError: the URL or an address is forbidden, or the host was not found. The message says why.
            TooManyUrls: the tenant has sent too many forbidden URLs, or too many URLs at once.
        """
        try:
            host = _Host(tenant, check_url(url, self._networks).hostname or "")
        except ValueError:
            self._count(tenant)
            raise
        if host not in self._checks:
            self._count(tenant)  # before the lookup, so that concurrent lookups count
            self._checks[host] = asyncio.create_task(self._check(host))
        await asyncio.shield(self._checks[host])  # other callers may wait for the same check

    async def _check(self, host: _Host) -> None:
        try:
            await self._lookup.check_host(host.name, self._networks)
        except BaseException as error:
            del self._checks[host]
            if not isinstance(error, ValueError):
                self._refused.release(host.tenant)
            raise
        self._refused.release(host.tenant)
        asyncio.get_running_loop().call_later(_ALLOWED_SECONDS, self._checks.pop, host, None)

    def _count(self, tenant: str) -> None:
        if seconds := self._refused.wait_seconds(tenant):
            raise TooManyUrls(seconds)
        self._refused.acquire(tenant)
