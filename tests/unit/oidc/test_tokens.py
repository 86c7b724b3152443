"""Tokens: accepted ones with the identities in their claims, and all kinds of forged or useless ones."""

import asyncio
import hmac
from collections.abc import Callable

import pytest
from joserfc.jws import JWSRegistry
from pydantic import JsonValue

from batchwright.oidc import tokens
from batchwright.oidc.issuer import IssuerKey, IssuerUnavailable
from batchwright.oidc.issuer_keys import MIN_REFRESH_SECONDS, REFRESH_SECONDS
from batchwright.oidc.tokens import (
    LEEWAY_SECONDS,
    MAX_TOKEN_CHARACTERS,
    InvalidToken,
    TokenIdentity,
)
from batchwright.rules.tenants.scopes import Scope
from tests.fakes.issuer import (
    AUDIENCE,
    ISSUER,
    FakeIssuer,
    ec_key,
    ed25519_key,
    encoded,
    jwk,
    rsa_key,
    token_of,
)
from tests.unit.oidc.verifier_fixture import NOW, VerifierFixture

_USER = frozenset({Scope.READ, Scope.WRITE})
_ALICE = TokenIdentity("blue", "alice", _USER)


@pytest.fixture
def made() -> VerifierFixture:
    return VerifierFixture()


@pytest.mark.parametrize(
    ("alg", "key"),
    [
        *((f"{family}{bits}", rsa_key) for family in ("RS", "PS") for bits in (256, 384, 512)),
        ("ES256", lambda: ec_key("a", "P-256")),
        ("ES384", lambda: ec_key("a", "P-384")),
        ("ES512", lambda: ec_key("a", "P-521")),
        ("EdDSA", ed25519_key),
        ("Ed25519", ed25519_key),
    ],
)
async def test_tokens_with_every_public_key_algorithm_are_accepted(
    made: VerifierFixture, alg: str, key: Callable[[], IssuerKey]
) -> None:
    made.issuer.keys = [key()]
    assert await made.verifier.verify(made.issuer.token(alg=alg)) == _ALICE


def hmac_of(secret: bytes) -> Callable[[bytes], bytes]:
    return lambda start: hmac.digest(secret, start, "sha256")


def forged(issuer: FakeIssuer, header: object, sign: Callable[[bytes], bytes]) -> str:
    return token_of(header, issuer.claims(), sign)


def changed_after_signing(issuer: FakeIssuer) -> str:
    header, _, signature = issuer.token().split(".")
    return f"{header}.{encoded(issuer.claims(tenant='red'))}.{signature}"


def with_embedded_key(issuer: FakeIssuer, **header: JsonValue) -> str:
    """Return a token that an attacker has signed with a key of their own. Its header contains this key."""
    stranger = ec_key("stranger")
    return issuer.token(stranger, header={"jwk": jwk(stranger), **header})


_SIGNATURE = "The token is not signed with a key of the issuer"
_ALGORITHM = "The token's algorithm is not accepted"
_FORM = "The token is not a valid JSON Web Token"
BAD: dict[str, tuple[Callable[[FakeIssuer], str], str]] = {
    "changed after it was signed": (changed_after_signing, _SIGNATURE),
    "signed by a stranger": (lambda i: i.token(ec_key("stranger")), _SIGNATURE),
    "signed by a stranger in the name of a key": (lambda i: i.token(ec_key("first")), _SIGNATURE),
    "signed by a stranger without the name of a key": (
        lambda i: i.token(ec_key("stranger"), header={"kid": None}),
        _SIGNATURE,
    ),
    "signed with another key of the issuer than it names": (
        lambda i: i.token(i.keys[-1], header={"kid": "rsa"}),
        _SIGNATURE,
    ),
    "signed with an algorithm that its key does not have": (
        lambda i: i.token(ec_key("first", "P-384"), alg="ES384"),
        _SIGNATURE,
    ),
    "signed by a stranger whose key is in the header": (with_embedded_key, _SIGNATURE),
    "the same in the name of a key": (lambda i: with_embedded_key(i, kid="first"), _SIGNATURE),
    "signed by a stranger whose keys have an address": (
        lambda i: with_embedded_key(i, jwk=None, jku="https://evil.example/jwks"),
        _SIGNATURE,
    ),
    "signed by a stranger whose certificate has an address": (
        lambda i: with_embedded_key(i, jwk=None, x5u="https://evil.example/x5u", kid="first"),
        _SIGNATURE,
    ),
    "not signed": (lambda i: forged(i, {"alg": "none"}, lambda _: b""), _ALGORITHM),
    "not signed, in other letters": (lambda i: forged(i, {"alg": "nOnE"}, lambda _: b""), _ALGORITHM),
    "not signed, in the name of a key": (
        lambda i: forged(i, {"alg": "none", "kid": "first"}, lambda _: b""),
        _ALGORITHM,
    ),
    "an empty signature": (lambda i: forged(i, {"alg": "ES256", "kid": "first"}, lambda _: b""), _SIGNATURE),
    "a signature of zeros": (
        lambda i: forged(i, {"alg": "ES256", "kid": "first"}, lambda _: bytes(64)),
        _SIGNATURE,
    ),
    "a public key as the secret": (
        lambda i: forged(i, {"alg": "HS256", "kid": "rsa"}, hmac_of(rsa_key().as_pem(private=False))),
        _ALGORITHM,
    ),
    "no algorithm": (lambda i: forged(i, {"kid": "first"}, lambda _: b""), _FORM),
    "an algorithm that is a number": (lambda i: forged(i, {"alg": 256}, lambda _: b""), _FORM),
    "an algorithm for encryption": (lambda i: forged(i, {"alg": "RSA-OAEP"}, lambda _: b""), _ALGORITHM),
    "a header that is a list": (lambda i: forged(i, ["alg"], lambda _: b""), _FORM),
    "a header that is a text": (lambda i: forged(i, "alg", lambda _: b""), _FORM),
    "a header that is no JSON": (lambda i: forged(i, b"{", lambda _: b""), _FORM),
    "a deep header": (lambda i: forged(i, b'{"alg":' + b"[" * 8000, lambda _: b""), _FORM),
    "a key id that is a list": (
        lambda i: forged(i, {"alg": "ES256", "kid": ["first"]}, lambda _: b""),
        _FORM,
    ),
    "an extension that must be understood": (
        lambda i: i.token(header={"crit": ["x"], "x": 1}),
        _FORM,
    ),
    "a wrong list of extensions": (lambda i: i.token(header={"crit": 5}), _FORM),
    "a payload that is not encoded": (lambda i: i.token(header={"crit": ["b64"], "b64": False}), _FORM),
    "four parts": (lambda i: i.token() + ".abcdefgh", _FORM),
    "two parts": (lambda i: i.token().rpartition(".")[0], _FORM),
    "no parts": (lambda i: "..", _FORM),
    "wrong characters": (lambda i: i.token().replace(".", ".%", 1), _FORM),
    "too long": (
        lambda i: i.token(padding="x" * MAX_TOKEN_CHARACTERS),
        f"The token is too long: at most {MAX_TOKEN_CHARACTERS} characters",
    ),
    "a logout token": (lambda i: i.token(header={"typ": "logout+jwt"}), "The token is of another type"),
    "another issuer": (
        lambda i: i.token(iss=f"{ISSUER}/"),
        f"The token comes from another issuer than {ISSUER}.",
    ),
    "a beginning of the issuer": (lambda i: i.token(iss="https://login"), "The token comes from another"),
    "no issuer": (lambda i: i.token(iss=None), "The token lacks a required claim: iss."),
    "another audience": (lambda i: i.token(aud="other"), "The token is not for this API: its audience"),
    "other audiences": (lambda i: i.token(aud=["other", "batches2"]), "The token is not for this API"),
    "a longer audience": (lambda i: i.token(aud=f"{AUDIENCE} x"), "The token is not for this API"),
    "no audience": (lambda i: i.token(aud=None), "The token lacks a required claim: aud."),
    "empty audiences": (lambda i: i.token(aud=[]), "The token is not for this API"),
    "an audience in an object": (lambda i: i.token(aud={AUDIENCE: 1}), "The token is not for this API"),
    "expired": (lambda i: i.token(exp=NOW - LEEWAY_SECONDS), "The token has expired."),
    "no expiry": (lambda i: i.token(exp=None), "The token lacks a required claim: exp."),
    "an expiry that is a text": (
        lambda i: i.token(exp="2100"),
        "The claim `exp` of the token has an invalid",
    ),
    "an expiry that is true": (lambda i: i.token(exp=True), "The claim `exp` of the token has an invalid"),
    "an infinite expiry": (
        lambda i: token_of(
            {"alg": "ES256", "kid": "first"},
            b'{"iss": "%s", "aud": "%s", "exp": 1e999}' % (ISSUER.encode(), AUDIENCE.encode()),
            lambda start: JWSRegistry.algorithms["ES256"].sign(start, i.keys[-1]),
        ),
        "The claim `exp` of the token has an invalid",
    ),
    "not valid yet": (
        lambda i: i.token(nbf=NOW + LEEWAY_SECONDS + 1),
        "The token is not valid yet: its claim `nbf`",
    ),
    "issued in the future": (
        lambda i: i.token(iat=NOW + LEEWAY_SECONDS + 1),
        "The token is not valid yet: its claim `iat`",
    ),
    "claims that are a list": (
        lambda i: token_of(
            {"alg": "ES256", "kid": "first"},
            ["iss"],
            lambda start: JWSRegistry.algorithms["ES256"].sign(start, i.keys[-1]),
        ),
        "The payload of the token is not a JSON object.",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_token_is_refused_with_a_reason_that_does_not_contain_it(
    made: VerifierFixture, name: str
) -> None:
    made.issuer.keys.insert(0, rsa_key())
    make, message = BAD[name]
    token = make(made.issuer)
    with pytest.raises(InvalidToken) as raised:
        await made.verifier.verify(token)
    assert str(raised.value).startswith(message)
    assert raised.value.is_expired == (name == "expired")
    assert not any(part in str(raised.value) for part in token.split(".") if len(part) > 8)
    assert made.verifier.recall(token) is None


async def test_keys_and_addresses_in_the_header_of_a_good_token_are_ignored(made: VerifierFixture) -> None:
    strange = {"jwk": jwk(ec_key("stranger")), "jku": "https://evil.example", "x5u": "https://evil.example"}
    token = made.issuer.token(header={**strange, "x5c": ["A" * 3000], "unknown": 1, "typ": "at+jwt"})
    assert await made.verifier.verify(token) == _ALICE


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW - LEEWAY_SECONDS + 1},
        {"nbf": NOW + LEEWAY_SECONDS, "iat": NOW + LEEWAY_SECONDS},
        {"exp": NOW + 0.5},
        {"exp": 10**30},
        {"aud": ["other", AUDIENCE]},
        {"iat": None},
    ],
)
async def test_clocks_may_differ_by_a_minute_and_a_token_may_have_several_audiences(
    made: VerifierFixture, changes: dict[str, JsonValue]
) -> None:
    assert await made.verify(**changes) == _ALICE


async def test_a_valid_token_is_known_until_it_expires(made: VerifierFixture) -> None:
    token = made.issuer.token(exp=NOW + 100)
    assert made.verifier.recall(token) is None
    await made.verifier.verify(token)
    made.seconds = 100 + LEEWAY_SECONDS - 1
    assert made.verifier.recall(token) == _ALICE
    made.seconds += 1
    assert made.verifier.recall(token) is None


async def test_a_valid_token_is_unknown_once_its_key_is_withdrawn(made: VerifierFixture) -> None:
    token = made.issuer.token(exp=NOW + 10_000)
    await made.verifier.verify(token)
    made.issuer.keys = [ec_key("second")]
    made.seconds = MIN_REFRESH_SECONDS
    assert (await made.verify()).user == "alice"  # the new key is fetched
    assert made.verifier.recall(token) is None
    with pytest.raises(InvalidToken):
        await made.verifier.verify(token)


async def test_a_token_of_a_rotated_key_is_valid_as_long_as_the_issuer_publishes_the_key(
    made: VerifierFixture,
) -> None:
    old = made.issuer.token(exp=NOW + 10_000)
    made.issuer.keys.append(ec_key("second"))
    assert await made.verify() == await made.verifier.verify(old) == _ALICE
    del made.issuer.keys[0]
    made.seconds = REFRESH_SECONDS
    assert await made.verify() == _ALICE  # the keys are fetched again, in the background
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "issuer_keys"))
    with pytest.raises(InvalidToken):
        await made.verifier.verify(old)


async def test_while_the_issuer_is_down_known_keys_verify_new_tokens_too(made: VerifierFixture) -> None:
    await made.verify()
    made.issuer.problem = "it is down"
    made.seconds = 3600
    assert await made.verify(sub="bob") == TokenIdentity("blue", "bob", _USER)


async def test_without_keys_a_token_is_neither_valid_nor_invalid(made: VerifierFixture) -> None:
    made.issuer.problem = "it is down"
    with pytest.raises(IssuerUnavailable):
        await made.verify()


async def test_the_least_recently_used_token_is_forgotten(
    made: VerifierFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MAX_CACHED_TOKENS", 2)
    first, second, third = (made.issuer.token(jti=text) for text in "abc")
    await made.verifier.verify(first)
    await made.verifier.verify(second)
    assert made.verifier.recall(first) is not None
    await made.verifier.verify(third)
    assert [made.verifier.recall(each) is not None for each in (first, second, third)] == [True, False, True]
