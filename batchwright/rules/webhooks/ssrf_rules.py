"""Decide which URLs and network addresses webhooks may be sent to.

Tenants choose the URLs. Without these rules, they could reach services inside the operator's network.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

MAX_URL_CHARACTERS = 2048
_LAST_PORT = 65535
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)  # some libraries read it as a part of an IPv4 address
# The tables are our own, because `ipaddress.is_global` differs between versions of Python.
_FORBIDDEN_IPV4 = [
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by carriers; metadata of Alibaba Cloud
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # services of Azure for its own machines
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # special purposes; metadata of Oracle Cloud
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
]
_PUBLIC_IPV6 = IPv6Network("2000::/3")
_FORBIDDEN_IPV6 = [
    IPv6Network(text)
    for text in (
        "2001::/23",  # special purposes; Teredo, which contains an IPv4 address
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which contains an IPv4 address
        "3fff::/20",  # documentation
    )
]
_NAT64 = IPv6Network("64:ff9b::/96")
_LOW_32_BITS = 0xFFFFFFFF


def parse_networks(texts: Sequence[str]) -> list[Network]:
    """Parse networks such as `10.0.0.0/8`, and return them in the same order.

    Raises:
        ValueError: a text is not a network.
    """
    return [ip_network(text) for text in texts]


def check_url(url: str, allowed: Sequence[Network]) -> SplitResult:
    """Check the URL of a webhook endpoint, and return its parts.

    If the host is a name, its addresses are not looked up here. `check_address` checks the address later,
    before a connection is opened.

    Args:
        allowed: networks that webhooks may be sent to although their addresses are not public.

    Raises:
        ValueError: webhooks may not be sent to this URL. The message says why and does not contain the URL.
    """
    if len(url) > MAX_URL_CHARACTERS:
        raise ValueError(f"it has over {MAX_URL_CHARACTERS} characters")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise ValueError("it may only contain printable ASCII characters without spaces and backslashes")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"it cannot be read: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("it must begin with https:// or http://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it must not contain a user name or a password")
    if parts.fragment:
        raise ValueError("it must not contain a fragment (#)")
    if port is not None and not 0 < port <= _LAST_PORT:
        raise ValueError(f"its port must be from 1 to {_LAST_PORT}")
    _check_host(parts.hostname or "", allowed)
    return parts


def _check_host(host: str, allowed: Sequence[Network]) -> None:
    if not host:
        raise ValueError("it has no host")
    if (literal := _literal(host)) is not None:
        check_address(literal, allowed)
    elif _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        raise ValueError("its host is a number, but not an IPv4 address such as 203.0.113.7")


def check_address(address: Address, allowed: Sequence[Network]) -> None:
    """Check that webhooks may be sent to an address: it is public, or in one of the `allowed` networks.

    Some IPv6 addresses contain an IPv4 address:

    - IPv4-mapped and NAT64 addresses are checked as the contained IPv4 address.
    - 6to4 and Teredo addresses count as not public.

    Args:
        allowed: networks that webhooks may be sent to although their addresses are not public.

    Raises:
        ValueError: webhooks may not be sent to this address.
    """
    meant = _embedded_ipv4(address) or address
    if any(candidate in network for candidate in (address, meant) for network in allowed):
        return
    if isinstance(meant, IPv4Address):
        is_public = not any(meant in network for network in _FORBIDDEN_IPV4)
    else:
        is_public = meant in _PUBLIC_IPV6 and not any(meant in network for network in _FORBIDDEN_IPV6)
    if not is_public:
        raise ValueError(f"the address {address} is not a public one")


def _embedded_ipv4(address: Address) -> IPv4Address | None:
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & _LOW_32_BITS)
    return address.ipv4_mapped


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None
