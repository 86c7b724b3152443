"""Send webhooks over HTTP to untrusted URLs that tenants have chosen.

After the DNS lookup, the address of the host is checked when the connection is opened. Redirects are not
followed, proxies of the environment are not used, and the response is bounded in size and time.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from batchwright.rules.webhooks.ssrf_rules import Network, check_address, check_url
from batchwright.webhooks.dns_lookup import DnsLookup

TIMEOUT_SECONDS = 15.0
MAX_RESPONSE_BYTES = 64 * 1024
_USER_AGENT = "Batchwright-Webhooks"
_AddressInfo = tuple[int, int, int, str, tuple[object, ...]]  # as from socket.getaddrinfo


class SendResult(NamedTuple):
    """Result of one request. If it failed, `reason` says why. If it succeeded, `reason` is empty.

    `status` is the HTTP status; None if there was no response. Only a request with a 2xx status succeeds.
    """

    status: int | None
    reason: str


class WebhookSender:
    """The sender of all webhooks of a process. The process must call `close` before it exits."""

    def __init__(
        self,
        allowed: Sequence[Network],
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Create a sender.

        Args:
            allowed: private networks to which webhooks may be sent, in addition to public addresses.
            timeout_seconds: time limit of a whole request, from the lookup of the host to the end of the
                response.
            tls: TLS settings; None to trust the system's CA certificates.
        """
        self._allowed, self._timeout = allowed, timeout_seconds
        self._tls = tls or ssl.create_default_context()
        self._lookup = DnsLookup()
        self._session: aiohttp.ClientSession | None = None

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> SendResult:
        """Send one request and return its result.

        If the request fails, no exception is raised, and the `reason` in the result says why it failed. The
        reason contains no part of the response except the status.
        """
        try:
            check_url(url, self._allowed)
        except ValueError as error:
            return SendResult(None, f"The URL is not allowed: {error}.")
        try:
            async with asyncio.timeout(self._timeout):
                return await self._send(url, headers, body)
        except TimeoutError:
            return SendResult(None, f"No complete response within {self._timeout:g} s.")
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            return SendResult(None, _reason(error))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        self._lookup.close()

    async def _send(self, url: str, headers: Mapping[str, str], body: bytes) -> SendResult:
        sent = {**headers, "content-type": "application/json", "user-agent": _USER_AGENT}
        async with self._open_session().post(url, data=body, headers=sent, allow_redirects=False) as response:
            size = 0
            async for piece in response.content.iter_any():
                size += len(piece)
                if size > MAX_RESPONSE_BYTES:
                    response.close()
                    return SendResult(
                        response.status, f"The response is larger than {MAX_RESPONSE_BYTES // 1024} KiB."
                    )
        if 200 <= response.status < 300:
            return SendResult(response.status, "")
        if 300 <= response.status < 400:
            return SendResult(response.status, f"Status {response.status}: redirects are not followed.")
        return SendResult(response.status, f"Status {response.status}.")

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,
                ssl=self._tls,
                force_close=True,  # an endpoint may be replaced behind its name at any time
                use_dns_cache=False,
                resolver=_Resolver(self._lookup),
                socket_factory=self._open_socket,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    def _open_socket(self, target: _AddressInfo) -> socket.socket:
        """Create a socket for a connection to `target`, and return it.

        Raises PermissionError if webhooks may not be sent to this address.
        """
        family, kind, protocol, _, address = target
        try:
            check_address(ip_address(str(address[0]).partition("%")[0]), self._allowed)
        except ValueError as error:
            raise PermissionError(errno.EACCES, str(error)) from None
        opened = socket.socket(family, kind, protocol)
        opened.setblocking(False)
        return opened


class _Resolver(AbstractResolver):
    """An adapter that lets aiohttp look up hosts with a DnsLookup.

    `close` does nothing, because the WebhookSender closes the DnsLookup.
    """

    def __init__(self, lookup: DnsLookup) -> None:
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET6 if address.version == 6 else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in await self._lookup.addresses(host, family)
        ]

    async def close(self) -> None:
        pass


def _reason(error: Exception) -> str:
    """Return why there was no response, in one sentence that names no URL."""
    match error:
        # The reason is the same for both. Otherwise tenants could find out the names of the operator's hosts.
        case (
            aiohttp.ClientConnectorDNSError()
            | aiohttp.ClientConnectorError(os_error=OSError(errno=errno.EACCES))
        ):
            return "The host of the URL was not found, or has an address that is not a public one."
        case aiohttp.ClientSSLError() | aiohttp.ClientConnectorCertificateError() | ssl.SSLError():
            return (
                "The TLS handshake failed: the endpoint needs a certificate that public authorities signed."
            )
        case aiohttp.ClientConnectorError():
            return "The connection was refused, or the host is unreachable."
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return "The connection broke before the response was complete."
        case _:
            return f"The response is not valid HTTP, or the connection broke ({type(error).__name__})."
