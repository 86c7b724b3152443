"""The form of settings that are addresses."""

from urllib.parse import urlsplit

from pydantic_core import PydanticCustomError

from batchwright.settings.errors import HIDDEN_VALUE


def http_url(url: str) -> str:
    """Without the slash at its end.

    Raises:
        ValueError: it is not one; no secret is in the message, the address is.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError("it must begin with http:// or https://")
    if not _has_host(url):
        raise ValueError("it names no host, or none that can be read")
    return url.rstrip("/")


def http_urls(urls: list[str]) -> list[str]:
    """The same, of several: the message names the one that is wrong."""
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} does not begin with http:// or https://")
        if not _has_host(url):
            raise ValueError(f"{url!r} names no host, or none that can be read")
    return [url.rstrip("/") for url in urls]


def postgres_url(url: str) -> str:
    """Raises ValueError; it may hold a password, which is not in the message."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("it must begin with postgresql://")
    try:
        urlsplit(url)  # of several hosts with ports, too
    except ValueError:
        raise ValueError("it cannot be read as a URL") from None
    return url


def _has_host(url: str) -> bool:
    """And a port that can be one, where it has a port."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def backend_urls(urls: list[str]) -> list[str]:
    """The same, of backends: their URLs stand in metrics, logs and lists, so they hold no secret.

    Raises:
        ValueError: as of others.
        PydanticCustomError: one holds what may be a secret; the value is not to be told.
    """
    for url in http_urls(urls):
        place = url.split("/", 3)[2]
        if "@" in place or "?" in url or "#" in url:
            raise PydanticCustomError(
                HIDDEN_VALUE,
                "a URL in it has a user, query or fragment; a key comes from BATCHWRIGHT_BACKEND_API_KEY",
            )
    return http_urls(urls)
