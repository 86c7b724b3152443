"""Decide if a host is this machine itself, so that no network is between client and server."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Return True if the host is `localhost` or a loopback address. An IPv6 address may have brackets."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
