"""A token verifier with its own clock and issuer."""

from datetime import UTC, datetime

from pydantic import JsonValue

from batchwright.oidc.issuer_keys import IssuerKeys
from batchwright.oidc.tokens import (
    TokenIdentity,
    TokenVerifier,
)
from tests.fakes.issuer import (
    AUDIENCE,
    ISSUER,
    FakeIssuer,
)
from tests.fakes.settings import load

NOW = 1_800_000_000


class VerifierFixture:
    """A verifier with its own clock, and the issuer whose tokens it accepts."""

    def __init__(self, **settings: object) -> None:
        self.seconds = 0.0
        self.issuer = FakeIssuer(lambda: NOW + self.seconds)
        self.keys = IssuerKeys(self.issuer.fetch, lambda: self.seconds)
        chosen = load(oidc_issuer=ISSUER, oidc_audience=AUDIENCE, **settings)
        self.verifier = TokenVerifier(
            chosen, self.keys, lambda: datetime.fromtimestamp(NOW + self.seconds, UTC)
        )

    async def verify(self, **changes: JsonValue) -> TokenIdentity:
        """Verify a token of the issuer with these changes of its claims. Return the identity."""
        return await self.verifier.verify(self.issuer.token_with(changes))
