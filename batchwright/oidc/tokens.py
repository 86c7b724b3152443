"""Check tokens of an issuer: JSON Web Tokens that name a tenant, a user and scopes (permissions)."""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple

from joserfc.errors import (
    ExpiredTokenError,
    InvalidClaimError,
    JoseError,
    MissingClaimError,
)
from joserfc.jwa import JWSAlgModel
from joserfc.jws import CompactSignature, JWSRegistry, extract_compact, validate_compact
from joserfc.jwt import JWTClaimsRegistry
from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError

from batchwright.oidc.issuer import IssuerKey
from batchwright.oidc.issuer_keys import IssuerKeys
from batchwright.rules.ids import is_tenant
from batchwright.rules.tenants.scopes import Scope
from batchwright.settings import Settings

# Only public-key signatures: with an HMAC algorithm, a public key would be the secret of a forged token.
ALGORITHMS = frozenset(
    f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512)
) | frozenset({"EdDSA", "Ed25519"})
LEEWAY_SECONDS = 60  # how far the clocks of the issuer and of this machine may differ
MAX_TOKEN_CHARACTERS = 16 * 1024
MAX_CACHED_TOKENS = 10_000  # for more tokens, the least recently used one is dropped
MAX_USER_CHARACTERS = 255
# Other types of tokens, such as logout tokens, have the same issuer, audience and keys.
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_DEFAULT_SCOPES = frozenset({Scope.READ, Scope.WRITE})  # scopes of every token if no claim is configured
_CLAIMS = TypeAdapter(dict[str, JsonValue])
_Claims = dict[str, JsonValue]


class InvalidToken(Exception):
    """The token is not valid, so it does not prove who sent it.

    The message says why, in one sentence for the sender.
    """

    def __init__(self, message: str, *, is_expired: bool = False) -> None:
        super().__init__(message)
        self.is_expired = is_expired


class UnusableClaim(Exception):
    """The token is valid, but a claim (a field of the token) that Batchwright needs is missing or invalid.

    The message names the claim, in one sentence for the sender.
    """


class TokenIdentity(NamedTuple):
    """Identity of a token's sender: tenant, user and scopes (permissions). Unknown scopes are left out."""

    tenant: str
    user: str
    scopes: frozenset[Scope]


class _CheckedToken(NamedTuple):
    identity: TokenIdentity
    keys: tuple[IssuerKey, ...]  # keys of the issuer when the token was checked
    expires_at: float  # seconds since 1970, without leeway


class _Header(BaseModel):
    """Header of a token. Keys and addresses of keys in it are ignored, because the sender chose them."""

    alg: str
    kid: str | None = None
    typ: str = "JWT"
    crit: None = None  # a token with required extensions is rejected


class _Registry(JWSRegistry):
    """Rules of joserfc for token headers. Unknown parameters are ignored, as RFC 7515 requires.

    `get_alg` accepts every algorithm, because `_parse` rejects the forbidden ones.
    """

    max_header_length = MAX_TOKEN_CHARACTERS

    def get_alg(self, name: str) -> JWSAlgModel:
        return self.algorithms[name]  # the base class would warn of EdDSA, because RFC 9864 renames it


_REGISTRY = _Registry(strict_check_header=False)


class TokenVerifier:
    """A verifier for tokens of the issuer in the settings. It caches the identities of valid tokens' senders.

    A cached identity is used until the token expires or the issuer's keys change.
    """

    def __init__(self, settings: Settings, keys: IssuerKeys, clock: Callable[[], datetime]) -> None:
        self._settings = settings
        self._keys = keys
        self._now = lambda: int(clock().timestamp())
        self._registered_claims = JWTClaimsRegistry(
            self._now,
            LEEWAY_SECONDS,
            iss={"essential": True, "value": settings.oidc_issuer},
            aud={"essential": True, "value": settings.oidc_audience},
            exp={"essential": True},
        )
        self._checked: OrderedDict[bytes, _CheckedToken] = OrderedDict()  # by hash of the token

    def recall(self, token: str) -> TokenIdentity | None:
        """Return the sender of a token from the cache.

        Return None if the token was not verified before, if it has expired, or if the issuer's keys have
        changed since.
        """
        if len(token) > MAX_TOKEN_CHARACTERS:
            return None
        digest = _digest(token)
        checked = self._checked.get(digest)
        if checked is None:
            return None
        is_expired = checked.expires_at <= self._now() - LEEWAY_SECONDS
        if is_expired or checked.keys is not self._keys.current():
            del self._checked[digest]
            return None
        self._checked.move_to_end(digest)
        return checked.identity

    async def verify(self, token: str) -> TokenIdentity:
        """Check the signature and the claims of a token, and return its sender.

        Raises:
            InvalidToken: the token is not valid, or not for this API.
            UnusableClaim: the claim for the tenant or the user is missing or invalid.
            IssuerUnavailable: the key that signed the token is not known, and the issuer's keys cannot be
                fetched.
        """
        signed, header = _parse(token)
        key = await self._keys.find(header.kid, header.alg)
        if key is None or not _is_signed_with(signed, key):
            raise InvalidToken("The token is not signed with a key of the issuer whose tokens are accepted.")
        claims = self._check_claims(signed.payload)
        identity = TokenIdentity(self._tenant(claims), self._user(claims), self._scopes(claims))
        expires_at = claims["exp"]
        assert isinstance(expires_at, int | float)  # `_check_claims` has checked it
        self._checked[_digest(token)] = _CheckedToken(identity, self._keys.current(), expires_at)
        if len(self._checked) > MAX_CACHED_TOKENS:
            self._checked.popitem(last=False)
        return identity

    def _check_claims(self, payload: bytes) -> _Claims:
        """Return the claims of a token whose signature is valid.

        Raises:
            InvalidToken: the token is expired or not valid yet, or it has another issuer or audience.
        """
        try:
            claims = _CLAIMS.validate_json(payload)
        except ValidationError:
            raise InvalidToken("The payload of the token is not a JSON object.") from None
        try:
            self._registered_claims.validate(claims)
        except ExpiredTokenError:
            message = "The token has expired. Get a new one from its issuer."
            raise InvalidToken(message, is_expired=True) from None
        except MissingClaimError as error:
            raise InvalidToken(f"The token lacks a required claim: {error.claim}.") from None
        except InvalidClaimError as error:
            raise InvalidToken(self._describe_claim(error.claim)) from None
        return claims

    def _describe_claim(self, claim: str) -> str:
        match claim:
            case "iss":
                return f"The token comes from another issuer than {self._settings.oidc_issuer}."
            case "aud":
                return (
                    "The token is not for this API: its audience (`aud`) lacks "
                    f"'{self._settings.oidc_audience}'."
                )
            case "nbf" | "iat":
                return f"The token is not valid yet: its claim `{claim}` is in the future."
            case _:
                return f"The claim `{claim}` of the token has an invalid value."

    def _tenant(self, claims: _Claims) -> str:
        name = self._settings.oidc_tenant_claim
        tenant = _find(claims, name)
        if tenant is None:
            raise UnusableClaim(f"The token names no tenant: it lacks the claim `{name}`.")
        if not isinstance(tenant, str) or not is_tenant(tenant):
            raise UnusableClaim(f"The claim `{name}` of the token is not the name of a tenant.")
        return tenant

    def _user(self, claims: _Claims) -> str:
        name = self._settings.oidc_user_claim
        user = _find(claims, name)
        if not isinstance(user, str) or not user.isprintable() or not 0 < len(user) <= MAX_USER_CHARACTERS:
            raise UnusableClaim(
                f"The token identifies no user: its claim `{name}` has to be a text of 1 to "
                f"{MAX_USER_CHARACTERS} printable characters."
            )
        return user

    def _scopes(self, claims: _Claims) -> frozenset[Scope]:
        name = self._settings.oidc_scopes_claim
        if not name:
            return _DEFAULT_SCOPES
        value = _find(claims, name)
        granted = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        return frozenset(scope for scope in Scope if scope in granted)


def _find(claims: _Claims, name: str) -> JsonValue:
    """Return the value of a claim; None if there is none.

    A name that begins with `/` is a JSON Pointer to a value in nested objects, such as `/realm_access/roles`.
    """
    if not name.startswith("/"):
        return claims.get(name)
    value: JsonValue = claims
    for part in name[1:].split("/"):
        if not isinstance(value, dict):
            return None
        value = value.get(part.replace("~1", "/").replace("~0", "~"))
    return value


def _parse(token: str) -> tuple[CompactSignature, _Header]:
    """Split a token, and return its parts and its header. The signature is not checked yet.

    Raises:
        InvalidToken: the token is too long or malformed, or its algorithm or type is never accepted.
    """
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise InvalidToken(f"The token is too long: at most {MAX_TOKEN_CHARACTERS} characters are accepted.")
    try:
        signed = extract_compact(token.encode(), registry=_REGISTRY)
        header = _Header.model_validate(signed.headers())
    except (JoseError, ValueError, TypeError, RecursionError):
        raise InvalidToken("The token is not a valid JSON Web Token.") from None
    if header.alg not in ALGORITHMS:
        raise InvalidToken(
            "The token's algorithm is not accepted. It has to be RS256, PS256, ES256 or EdDSA, or one of the "
            "first three with 384 or 512 bits."
        )
    if header.typ.lower() not in _TYPES:
        raise InvalidToken("The token is of another type (`typ`) than access tokens and ID tokens.")
    return signed, header


def _is_signed_with(signed: CompactSignature, key: IssuerKey) -> bool:
    try:
        return validate_compact(signed, key, registry=_REGISTRY)
    except JoseError:
        return False


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()
