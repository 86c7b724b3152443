"""Formats that several settings share: URLs, tenant names, and references to Python objects."""

import importlib
import re
from urllib.parse import urlsplit

from pydantic_core import PydanticCustomError

from batchwright.rules.ids import is_tenant
from batchwright.rules.loopback import is_loopback
from batchwright.settings.error_messages import HIDDEN_VALUE

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[a-z0-9_.:\[\]-]+")
_HOST_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def http_url(url: str) -> str:
    """Check an HTTP or HTTPS URL, and return it without trailing slashes.

    Raises:
        ValueError: the text is not an HTTP or HTTPS URL. The message does not contain the text.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError("it must begin with http:// or https://")
    if not _has_host(url):
        raise ValueError("it has no valid host")
    return url.rstrip("/")


def http_urls(urls: list[str]) -> list[str]:
    """Check HTTP or HTTPS URLs, and return them without trailing slashes.

    Raises:
        ValueError: a text is not an HTTP or HTTPS URL. The message contains the text.
    """
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} does not begin with http:// or https://")
        if not _has_host(url):
            raise ValueError(f"{url!r} has no valid host")
    return [url.rstrip("/") for url in urls]


def web_origins(texts: list[str]) -> list[str]:
    """Check origins of web pages, and return them in the form in which browsers send them.

    Browsers send origins in lower case and without a slash at the end. `*` stands for all origins.

    Raises:
        ValueError: a text is not an origin. The message contains the text.
    """
    origins = [text.lower().removesuffix("/") for text in texts]
    for text, origin in zip(texts, origins, strict=True):
        if origin != "*" and _ORIGIN.fullmatch(origin) is None:
            raise ValueError(f"{text!r} is not an origin such as https://app.example.com")
    return origins


def host_names(texts: list[str]) -> list[str]:
    """Check names of hosts, and return them in lower case, without a dot at the end.

    Raises:
        ValueError: a text is not the name of a host, for example because it has a port. The message contains
            the text.
    """
    names = [text.lower().removesuffix(".") for text in texts]
    for text, name in zip(texts, names, strict=True):
        if _HOST_NAME.fullmatch(name) is None:
            raise ValueError(f"{text!r} is not a host name such as batches.example.com")
    return names


def secure_url(url: str) -> str:
    """Check that a URL uses https, or http with a host on this machine. Return the URL unchanged.

    Raises:
        ValueError: the text is not such a URL. The message does not contain the text.
    """
    if not (url.startswith(("http://", "https://")) and _has_host(url)):
        raise ValueError("it is not an HTTPS URL")
    if url.startswith("http://") and not is_loopback(urlsplit(url).hostname or ""):
        raise ValueError("it must begin with https://, unless its host is a loopback address")
    return url


def issuer_url(url: str) -> str:
    """Check the URL of an OpenID Connect issuer, and return it unchanged.

    Tokens contain exactly this URL, so even a trailing slash is kept.

    Raises:
        ValueError: the text is not a secure URL, or it has a user, a query or a fragment.
    """
    if "@" in url or "?" in url or "#" in url:
        raise ValueError("an issuer has no user, query or fragment")
    return secure_url(url)


def postgres_url(url: str) -> str:
    """Check the URL of a PostgreSQL database, and return it unchanged.

    Raises:
        ValueError: the URL is invalid. The message does not contain the URL, which may have a password.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("it must begin with postgresql://")
    try:
        urlsplit(url)  # also accepts several hosts with ports
    except ValueError:
        raise ValueError("it cannot be read as a URL") from None
    return url


def _has_host(url: str) -> bool:
    """Return True if the URL has a host, and its port is valid or missing."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def backend_urls(urls: list[str]) -> list[str]:
    """Check the URLs of backends, and return them without trailing slashes.

    Raises:
        ValueError: a text is not an HTTP or HTTPS URL.
        PydanticCustomError: a URL has a user, a query or a fragment. These parts may contain a secret, and
            metrics and logs show the URLs of backends.
    """
    for url in http_urls(urls):
        place = url.split("/", 3)[2]
        if "@" in place or "?" in url or "#" in url:
            raise PydanticCustomError(
                HIDDEN_VALUE,
                "a URL in it has a user, query or fragment; a key comes from BATCHWRIGHT_BACKEND_API_KEY",
            )
    return http_urls(urls)


def check_tenant(name: str) -> str:
    """Check a tenant's name, and return it unchanged. The empty name is valid.

    Raises:
        ValueError: the name is invalid.
    """
    if name and not is_tenant(name):
        raise ValueError("a tenant has 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit")
    return name


class InvalidObjectReference(Exception):
    """Raised if a reference `module:attribute` is invalid, or if its object cannot be loaded.

    The message has the reference and the reason.
    """


def load_object(reference: str) -> object:
    """Import the object that a reference of the form `module:attribute` names, and return it.

    If the object is a class, create an instance without arguments, and return the instance.

    Raises:
        InvalidObjectReference: the reference has another form, there is no such object, or importing or
            calling it fails.
    """
    module, colon, attribute = reference.partition(":")
    if not (module and colon and attribute):
        raise InvalidObjectReference(f"{reference!r} is not of the form module:attribute")
    try:
        found: object = getattr(importlib.import_module(module), attribute)
        return found() if isinstance(found, type) else found
    except Exception as error:  # importing a user's module can raise anything
        raise InvalidObjectReference(
            f"{reference!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
