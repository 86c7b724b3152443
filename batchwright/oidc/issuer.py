"""Fetch the public keys of an OpenID Connect issuer: its discovery document, then its JSON Web Key Set.

Responses are bounded in size and time. Redirects are not followed, and proxies of the environment are not
used.
"""

import asyncio
import ssl
import warnings
from typing import TypeVar, cast
from urllib.parse import urlsplit

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import DictKey, ECKey, OKPKey, RSAKey
from pydantic import BaseModel, Field, JsonValue, ValidationError

from batchwright.settings.value_formats import secure_url

DISCOVERY_PATH = "/.well-known/openid-configuration"
FETCH_SECONDS = 10.0  # for both documents together
MAX_DOCUMENT_BYTES = 256 * 1024
MAX_KEYS = 100
_MAX_URL_CHARACTERS = 300

IssuerKey = RSAKey | ECKey | OKPKey
_KEY_TYPES: dict[str, type[IssuerKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}


class IssuerUnavailable(Exception):
    """The public keys of the token issuer cannot be fetched. A later attempt may succeed.

    The message says why, without a full stop at its end.
    """


class _Discovery(BaseModel):
    issuer: str = Field(max_length=_MAX_URL_CHARACTERS)
    jwks_uri: str = Field(max_length=_MAX_URL_CHARACTERS)


class _KeySet(BaseModel):
    keys: list[JsonValue] = Field(max_length=MAX_KEYS)


_Document = TypeVar("_Document", bound=BaseModel)


async def fetch_keys(issuer: str, transport: httpx.AsyncBaseTransport | None = None) -> tuple[IssuerKey, ...]:
    """Fetch the public keys with which the issuer signs tokens. Return at least one key.

    Args:
        issuer: URL of the issuer. Its discovery document must name the issuer with exactly this text.
        transport: sends the requests; None to send them over new connections.

    Raises:
        IssuerUnavailable: the issuer does not respond in time, or its response is not valid.
    """
    if transport is None:  # loading the certificates of authorities takes a while
        transport = httpx.AsyncHTTPTransport(verify=await asyncio.to_thread(ssl.create_default_context))
    try:
        async with (
            asyncio.timeout(FETCH_SECONDS),
            httpx.AsyncClient(transport=transport, trust_env=False, timeout=FETCH_SECONDS) as client,
        ):
            discovery = await _fetch(client, issuer.rstrip("/") + DISCOVERY_PATH, _Discovery)
            _check_discovery(issuer, discovery)
            return _usable_keys(await _fetch(client, discovery.jwks_uri, _KeySet), discovery.jwks_uri)
    except TimeoutError:
        raise IssuerUnavailable(f"{issuer} did not respond within {FETCH_SECONDS:g} s") from None


async def _fetch(client: httpx.AsyncClient, url: str, kind: type[_Document]) -> _Document:
    body = bytearray()
    try:
        async with client.stream("GET", url, headers=_HEADERS) as response:
            if response.status_code != 200:
                hint = "; redirects are not followed" if response.is_redirect else ""
                raise IssuerUnavailable(f"{url} returned status {response.status_code}{hint}")
            if response.headers.get("content-encoding", "identity") != "identity":
                raise IssuerUnavailable(f"{url} returned compressed data, which was not requested")
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MAX_DOCUMENT_BYTES:
                    raise IssuerUnavailable(f"{url} returned more than {MAX_DOCUMENT_BYTES // 1024} KiB")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise IssuerUnavailable(f"{url} cannot be fetched ({type(error).__name__}: {error})") from error
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        what = f"{place}: {first['msg']}" if place else first["msg"]
        raise IssuerUnavailable(f"{url} returned no valid document ({what})") from None


def _check_discovery(issuer: str, discovery: _Discovery) -> None:
    """Check that the discovery document belongs to the issuer and names a safe URL for fetching keys.

    If the issuer's URL begins with https, the URL of the keys must begin with https, too.

    Raises:
        IssuerUnavailable: one of these checks fails.
    """
    if discovery.issuer != issuer:
        raise IssuerUnavailable(
            f"The discovery document of {issuer} belongs to the issuer {discovery.issuer!r}"
        )
    try:
        uri = secure_url(discovery.jwks_uri)
    except ValueError as error:
        raise IssuerUnavailable(f"The jwks_uri of {issuer} cannot be used: {error}") from None
    if urlsplit(uri).scheme == "http" and urlsplit(issuer).scheme == "https":
        raise IssuerUnavailable(f"The jwks_uri of {issuer} cannot be used: it must begin with https://")


def _usable_keys(document: _KeySet, url: str) -> tuple[IssuerKey, ...]:
    """Return those keys in `document` that can verify the signatures of tokens.

    Leave out keys for encryption, symmetric keys, short keys, invalid keys and keys of unknown types.

    Raises:
        IssuerUnavailable: no key is usable.
    """
    keys = tuple(key for key in map(_import_key, document.keys) if key is not None)
    if not keys:
        raise IssuerUnavailable(f"{url} returned no key that can verify signatures of tokens")
    return keys


def _import_key(jwk: JsonValue) -> IssuerKey | None:
    if not isinstance(jwk, dict):
        return None
    kind = _KEY_TYPES.get(str(jwk.get("kty")))
    if kind is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("error", SecurityWarning)  # of RSA keys below 2048 bits
        try:
            key = kind.import_key(cast("DictKey", jwk))
            key.check_use("sig")
            key.check_key_op("verify")
        except (JoseError, SecurityWarning, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
            return None
    return key
