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
    """A tenant has sent too many URLs that are not allowed. After `seconds`, the tenant may send more."""

    def __init__(self, seconds: int) -> None:
        super().__init__(
            f"Too many webhook URLs were refused or are being checked. Try again in {seconds} s."
        )
        self.seconds = seconds


class _Host(NamedTuple):
    tenant: str
    name: str


class UrlChecker:
    """Checker for URLs of webhooks. It also limits how many forbidden URLs a tenant may send.

    A process has one checker. Concurrent checks of a tenant for the same host share one lookup. An allowed
    host is not looked up again for ten seconds.
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
        """Check that webhooks may be sent to this URL, and to the present addresses of its host.

        Raises:
            ValueError: webhooks may not be sent there. The message says why.
            TooManyUrls: the tenant has sent too many URLs that are not allowed.
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
