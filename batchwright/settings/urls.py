"""The form of settings that are addresses."""


def http_url(url: str) -> str:
    """Without the slash at its end.

    Raises:
        ValueError: it is not one; no secret is in the message, the address is.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError("it must begin with http:// or https://")
    return url.rstrip("/")


def http_urls(urls: list[str]) -> list[str]:
    """The same, of several: the message names the one that is wrong."""
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} does not begin with http:// or https://")
    return [url.rstrip("/") for url in urls]
