"""An OpenID Connect issuer: its keys, the tokens that it signs, and forged tokens."""

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from pydantic import JsonValue

from batchwright.oidc.issuer import IssuerKey, IssuerUnavailable

ISSUER = "https://login.example.com/realms/acme"
AUDIENCE = "batches"


@cache
def rsa_key(kid: str = "rsa") -> RSAKey:
    return RSAKey.generate_key(2048, parameters={"kid": kid})


def ec_key(kid: str, curve: str = "P-256") -> ECKey:
    return ECKey.generate_key(curve, parameters={"kid": kid})


def ed25519_key() -> OKPKey:
    return OKPKey.generate_key("Ed25519", parameters={"kid": "ed"})


def public(key: IssuerKey) -> IssuerKey:
    return type(key).import_key(key.as_dict(private=False))


def jwk(key: IssuerKey, **parameters: JsonValue) -> dict[str, Any]:
    """Return the public key as issuers publish it, with changed parameters. A change to None removes the
    parameter.
    """
    changed = {**key.as_dict(private=False), **parameters}
    return {name: value for name, value in changed.items() if value is not None}


def encoded(part: object) -> str:
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def token_of(header: object, claims: object, sign: Callable[[bytes], bytes]) -> str:
    """Return a token with any header and claims. `sign` returns the signature of its first two parts."""
    start = f"{encoded(header)}.{encoded(claims)}"
    return f"{start}.{encoded(sign(start.encode()))}"


class FakeIssuer:
    """An issuer of tokens with one key. `fetch` returns its public keys in the form for `IssuerKeys`.

    Attributes:
        keys: private keys of the issuer. It signs tokens with the last one.
        problem: if not empty, the issuer is unavailable for this reason.
        fetches: number of times that the keys were fetched.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.keys: list[IssuerKey] = [ec_key("first")]
        self.problem = ""
        self.fetches = 0
        self._now = now

    async def fetch(self) -> tuple[IssuerKey, ...]:
        self.fetches += 1
        if self.problem:
            raise IssuerUnavailable(self.problem)
        return tuple(public(key) for key in self.keys)

    def claims(self, **changes: JsonValue) -> dict[str, JsonValue]:
        """Return the claims of a valid token with these changes. A change to None removes the claim."""
        now = int(self._now())
        usual: dict[str, JsonValue] = {
            **{"iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 600},
            **{"sub": "alice", "tenant": "blue", "scope": "openid read write"},
        }
        return {name: value for name, value in {**usual, **changes}.items() if value is not None}

    def token(
        self,
        key: IssuerKey | None = None,
        alg: str = "ES256",
        header: Mapping[str, JsonValue] | None = None,
        **changes: JsonValue,
    ) -> str:
        """Return a token with changed claims, signed with `key`; None for the issuer's newest key."""
        return self._signed(self.claims(**changes), key or self.keys[-1], alg, header or {})

    def token_with(self, changes: Mapping[str, JsonValue]) -> str:
        """Return a token with these changes of its claims. A change to None removes the claim."""
        return self._signed(self.claims(**changes), self.keys[-1], "ES256", {})

    def _signed(self, claims: object, signer: IssuerKey, alg: str, header: Mapping[str, JsonValue]) -> str:
        head: dict[str, JsonValue] = {"alg": alg, "kid": signer.kid, "typ": "JWT", **header}
        head = {name: value for name, value in head.items() if value is not None}
        return token_of(head, claims, lambda start: JWSRegistry.algorithms[alg].sign(start, signer))
