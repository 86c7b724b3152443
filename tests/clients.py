"""HTTP clients for processes on this machine. They use no proxy and have a long timeout.

The default timeout of httpx, five seconds, is too short for a process that shares its core with many others.
"""

from collections.abc import Mapping

import httpx

SECONDS = 60.0


def http_client(base_url: str = "", headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    """Return a client that does not load CA certificates, because loading takes longer than a request."""
    return httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=SECONDS, trust_env=False, verify=False
    )


def get(url: str) -> httpx.Response:
    """Send a GET request to `url` and return the response.

    Raises:
        httpx.TransportError: no server answers at `url`.
    """
    return httpx.get(url, timeout=SECONDS, trust_env=False, verify=False)
