"""Claims of tokens: which of them name the tenant, the user and the scopes."""

import pytest
from pydantic import JsonValue

from batchwright.oidc.tokens import (
    TokenIdentity,
    UnusableClaim,
)
from batchwright.rules.tenants.scopes import Scope
from tests.unit.oidc.verifier_fixture import VerifierFixture


@pytest.fixture
def made() -> VerifierFixture:
    return VerifierFixture()


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("read", {Scope.READ}),
        (" ".join(Scope), set(Scope)),
        ("openid write  admin\nemail", {Scope.WRITE, Scope.ADMIN}),
        (["read", "write", "other", 5, None], {Scope.READ, Scope.WRITE}),
        ("READ reads read,write", set[Scope]()),
        ("", set[Scope]()),
        (None, set[Scope]()),
        (["read write"], set[Scope]()),
        ({"read": True}, set[Scope]()),
        (True, set[Scope]()),
    ],
)
async def test_scopes_are_a_text_or_a_list_and_other_values_are_ignored(
    made: VerifierFixture, scope: JsonValue, expected: set[Scope]
) -> None:
    assert (await made.verify(scope=scope)).scopes == expected


async def test_claims_have_the_names_of_the_settings() -> None:
    made = VerifierFixture(
        oidc_tenant_claim="https://acme.example/team", oidc_user_claim="email", oidc_scopes_claim="roles"
    )
    claims: dict[str, JsonValue] = {
        "https://acme.example/team": "red",
        "email": "b@acme.example",
        "roles": ["admin"],
    }
    expected = TokenIdentity("red", "b@acme.example", frozenset({Scope.ADMIN}))
    assert await made.verify(**claims) == expected


async def test_without_a_claim_of_scopes_every_token_may_read_and_write() -> None:
    made = VerifierFixture(oidc_scopes_claim="")
    assert (await made.verify(scope="admin")).scopes == {Scope.READ, Scope.WRITE}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tenant": None}, "The token names no tenant: it lacks the claim `tenant`."),
        ({"tenant": ""}, "The claim `tenant` of the token is not the name of a tenant."),
        ({"tenant": "a/b"}, "The claim `tenant` of the token is not the name of a tenant."),
        ({"tenant": ["blue"]}, "The claim `tenant` of the token is not the name of a tenant."),
        ({"tenant": 5}, "The claim `tenant` of the token is not the name of a tenant."),
        ({"sub": None}, "The token identifies no user: its claim `sub` has to be"),
        ({"sub": ""}, "The token identifies no user: its claim `sub` has to be"),
        ({"sub": "a\nb"}, "The token identifies no user: its claim `sub` has to be"),
        ({"sub": "a" * 256}, "The token identifies no user: its claim `sub` has to be"),
    ],
)
async def test_a_token_without_a_tenant_or_a_user_is_of_no_use(
    made: VerifierFixture, changes: dict[str, JsonValue], message: str
) -> None:
    with pytest.raises(UnusableClaim) as raised:
        await made.verify(**changes)
    assert str(raised.value).startswith(message)


async def test_claims_in_nested_objects_are_found_by_their_paths() -> None:
    made = VerifierFixture(
        oidc_tenant_claim="/org~1unit/a~0b.c",
        oidc_user_claim="/profile/name",
        oidc_scopes_claim="/realm_access/roles",
    )
    claims: dict[str, JsonValue] = {
        "org/unit": {"a~b.c": "red"},
        "profile": {"name": "bob"},
        "realm_access": {"roles": ["offline_access", "viewer", "read"]},
    }
    expected = TokenIdentity("red", "bob", frozenset({Scope.VIEWER, Scope.READ}))
    assert await made.verify(**claims) == expected
    # A claim that has the path as its name is another one, and a wrong type on the way is no claim.
    others: list[JsonValue] = [None, ["roles"], "roles", {"other": ["read"]}]
    for roles in others:
        flat: dict[str, JsonValue] = {**claims, "realm_access": roles, "/realm_access/roles": ["admin"]}
        assert (await made.verify(**flat)).scopes == frozenset()
    claims["org/unit"] = {"a": "red"}
    with pytest.raises(UnusableClaim, match=r"it lacks the claim `/org~1unit/a~0b\.c`"):
        await made.verify(**claims)


async def test_a_name_with_dots_and_slashes_is_the_name_of_one_claim() -> None:
    made = VerifierFixture(oidc_tenant_claim="https://acme.example/tenant")
    assert (await made.verify(**{"https://acme.example/tenant": "red"})).tenant == "red"
