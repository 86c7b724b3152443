"""Keys of issuers: one that responds correctly, and others that respond with anything else."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
import trustme
from joserfc.jwk import OctKey
from pydantic import JsonValue

from batchwright.oidc import issuer as fetching
from batchwright.oidc.issuer import MAX_DOCUMENT_BYTES, MAX_KEYS, IssuerUnavailable, fetch_keys
from batchwright.starter.embedded_stack.ports import free_port
from tests.fakes.certificates import server_context
from tests.fakes.issuer import ISSUER, ec_key, ed25519_key, jwk, rsa_key

_DISCOVERY = f"{ISSUER}/.well-known/openid-configuration"
_JWKS = "https://keys.example.com/jwks"
_KEY = ec_key("first")
_WEAK_KEY = {"kty": "RSA", "kid": "weak", "e": "AQAB", "n": "w" * 171}  # 1024 bits

Answers = dict[str, httpx.Response | Exception]


def answers(
    discovery: object = None, jwks: object = None, **changes: JsonValue
) -> dict[str, httpx.Response | Exception]:
    """Return the responses of an issuer by URL. `changes` are made to its discovery document."""
    document = {"issuer": ISSUER, "jwks_uri": _JWKS, **changes}
    return {
        _DISCOVERY: response(document if discovery is None else discovery),
        _JWKS: response({"keys": [jwk(_KEY)]} if jwks is None else jwks),
    }


def response(of: object) -> httpx.Response | Exception:
    match of:
        case httpx.Response() | Exception():
            return of
        case bytes():
            return httpx.Response(200, content=of)
        case _:
            return httpx.Response(200, content=json.dumps(of).encode())


async def fetched(given: Answers, issuer: str = ISSUER) -> list[str | None]:
    """Fetch the keys from an issuer with these responses, and return their ids."""

    def respond(request: httpx.Request) -> httpx.Response:
        answer = given[str(request.url)]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return [key.kid for key in await fetch_keys(issuer, httpx.MockTransport(respond))]


async def test_the_keys_are_those_that_the_discovery_document_names() -> None:
    keys = [jwk(key) for key in (_KEY, rsa_key(), ed25519_key())]
    assert await fetched(answers(jwks={"keys": keys})) == ["first", "rsa", "ed"]


async def test_a_slash_at_the_end_of_the_issuer_is_part_of_its_name() -> None:
    given = answers(issuer=f"{ISSUER}/")
    assert await fetched(given, f"{ISSUER}/") == ["first"]
    with pytest.raises(IssuerUnavailable, match=r"belongs to the issuer 'https://login.*/acme/'$"):
        await fetched(given)


def large() -> AsyncIterator[bytes]:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 1000

    return pieces()


RUBBISH: dict[str, tuple[Callable[[], Answers], str]] = {
    "HTML": (lambda: answers(b"<html>sign in</html>"), "returned no valid document"),
    "nothing": (lambda: answers(b""), "returned no valid document"),
    "deep JSON": (lambda: answers(b"[" * 100_000), "returned no valid document"),
    "a list": (lambda: answers([]), "returned no valid document"),
    "no address of keys": (lambda: answers({"issuer": ISSUER}), r"returned no valid document \(jwks_uri: "),
    "numbers": (lambda: answers(issuer=1, jwks_uri=2), r"returned no valid document \(issuer: "),
    "another issuer": (lambda: answers(issuer="https://evil.example"), "belongs to the issuer"),
    "a redirect": (
        lambda: answers(httpx.Response(302, headers={"location": "https://evil.example"})),
        "returned status 302; redirects are not followed$",
    ),
    "an error": (lambda: answers(httpx.Response(500)), "returned status 500$"),
    "no end": (lambda: answers(httpx.Response(200, content=large())), "returned more than 256 KiB$"),
    "compressed data": (
        lambda: answers(httpx.Response(200, headers={"content-encoding": "br"}, content=b"x")),
        "returned compressed data",
    ),
    "a broken connection": (lambda: answers(httpx.ReadError("it broke")), "it broke"),
    "a redirect to keys": (
        lambda: answers(jwks=httpx.Response(301, headers={"location": "https://evil.example"})),
        "jwks returned status 301",
    ),
    "keys that are no list": (lambda: answers(jwks={"keys": {"a": 1}}), r"jwks returned no valid document"),
    "too many keys": (lambda: answers(jwks={"keys": [0] * (MAX_KEYS + 1)}), "no valid document"),
    "no keys": (lambda: answers(jwks={"keys": []}), "no key that can verify"),
    "keys of any type": (lambda: answers(jwks=b'{"keys": [1, "a", null, [], {}]}'), "no key that can verify"),
    "a secret": (
        lambda: answers(jwks={"keys": [OctKey.generate_key(256).as_dict(private=True)]}),
        "no key that can verify",
    ),
    "a key for encryption": (lambda: answers(jwks={"keys": [jwk(_KEY, use="enc")]}), "no key that can"),
    "a key for other operations": (
        lambda: answers(jwks={"keys": [jwk(_KEY, key_ops=["deriveKey"])]}),
        "no key that can verify",
    ),
    "a weak key": (lambda: answers(jwks={"keys": [_WEAK_KEY]}), "no key that can verify"),
    "keys with wrong members": (
        lambda: answers(
            jwks={
                "keys": [
                    *(jwk(_KEY, x=1), jwk(_KEY, x="!"), jwk(_KEY, y=None), jwk(_KEY, crv="P-1")),
                    *(jwk(_KEY, kid=1), jwk(_KEY, kty=["EC"]), jwk(_KEY, kty="EC2"), jwk(_KEY, x="AQAB")),
                    *(jwk(rsa_key(), n=""), jwk(rsa_key(), e=None), jwk(rsa_key(), n="AA" * 200)),
                    *(jwk(ed25519_key(), crv="Ed1"), jwk(ed25519_key(), x="AQAB")),
                ]
            }
        ),
        "no key that can verify",
    ),
    "a long address of keys": (
        lambda: answers(jwks_uri="https://keys.example.com/" + "a" * 300),
        r"returned no valid document \(jwks_uri: ",
    ),
    "an address of keys that is none": (lambda: answers(jwks_uri="https://a\x00b/"), "cannot be fetched"),
    "keys without TLS": (lambda: answers(jwks_uri="http://keys.example.com"), "must begin with https://"),
    "keys without TLS on this machine": (
        lambda: answers(jwks_uri="http://127.0.0.1/keys"),
        "must begin with https://",
    ),
    "keys in a file": (lambda: answers(jwks_uri="file:///etc/passwd"), "is not an HTTPS URL"),
    "keys nowhere": (lambda: answers(jwks_uri="https://"), "is not an HTTPS URL"),
}


@pytest.mark.parametrize("name", RUBBISH)
async def test_an_issuer_that_responds_with_rubbish_counts_as_unavailable(name: str) -> None:
    given, message = RUBBISH[name]
    with pytest.raises(IssuerUnavailable, match=message) as raised:
        await fetched(given())
    assert len(str(raised.value)) < 500


async def test_a_key_that_cannot_be_used_does_not_hide_the_others() -> None:
    keys = [jwk(_KEY, kty="AKP"), _WEAK_KEY, jwk(_KEY), 5, jwk(_KEY, use="enc", kid="other")]
    assert await fetched(answers(jwks={"keys": keys})) == ["first"]


async def test_a_document_may_be_as_large_as_the_limit() -> None:
    whole = json.dumps({"issuer": ISSUER, "jwks_uri": _JWKS}).encode()
    assert await fetched(answers(whole.ljust(MAX_DOCUMENT_BYTES))) == ["first"]
    with pytest.raises(IssuerUnavailable, match="returned more than"):
        await fetched(answers(whole.ljust(MAX_DOCUMENT_BYTES + 1)))


async def test_an_issuer_that_does_not_respond_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "FETCH_SECONDS", 0.01)

    async def respond(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(IssuerUnavailable, match="did not respond within"):
        await fetch_keys(ISSUER, httpx.MockTransport(respond))


async def test_an_issuer_that_is_down_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(IssuerUnavailable, match=f"^{url}/.well-known/openid-configuration cannot be fetched"):
        await fetch_keys(url)


async def test_an_issuer_whose_certificate_nobody_trusts_is_refused() -> None:
    tls = server_context(trustme.CA().issue_cert("127.0.0.1"))

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(IssuerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await fetch_keys(f"https://127.0.0.1:{port}")
