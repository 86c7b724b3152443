"""HTTP clients for our own processes on this machine: nothing between, and time for an answer.

httpx's own five seconds are too few for a process that shares its core with a dozen others.
"""

from collections.abc import Mapping

import httpx

SECONDS = 60.0


def http_client(base_url: str = "", headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    """Without the certificates of the world, which take longer to read than a request."""
    return httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=SECONDS, trust_env=False, verify=False
    )


def asked(url: str) -> httpx.Response:
    """What a GET answers. Raises httpx.TransportError where nobody does."""
    return httpx.get(url, timeout=SECONDS, trust_env=False, verify=False)
