"""The scope that each route needs, and what the scopes of a caller allow."""

import pytest

from batchwright.rules.tenants.scopes import Scope, is_granted, required_scope


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/v1/files", Scope.READ),
        ("HEAD", "/v1/files", Scope.READ),
        ("POST", "/v1/batches", Scope.WRITE),
        ("DELETE", "/v1/files/x", Scope.WRITE),
        ("BREW", "/v1/files", Scope.WRITE),
        ("GET", "/admin/rates", Scope.VIEWER),
        ("HEAD", "/admin/quotas", Scope.VIEWER),
        ("PUT", "/admin/rates", Scope.OPERATOR),
        ("POST", "/admin/batches/x/cancel", Scope.OPERATOR),
        ("DELETE", "/admin/holds", Scope.OPERATOR),
        ("DELETE", "/admin/dlq/x", Scope.OPERATOR),
        ("PUT", "/admin/ratesx", Scope.ADMIN),
        ("PUT", "/admin/quotas", Scope.ADMIN),
        ("PUT", "/admin/models/rates", Scope.ADMIN),
        ("POST", "/admin/anything", Scope.ADMIN),
        ("POST", "/admin", Scope.ADMIN),
        ("GET", "/admin", Scope.VIEWER),
        ("GET", "/v1/stats", Scope.VIEWER),
        ("GET", "/metrics", Scope.VIEWER),
        ("GET", "/administration", Scope.READ),
    ],
)
def test_each_request_needs_its_scope(method: str, path: str, scope: Scope) -> None:
    assert required_scope(method, path) is scope


@pytest.mark.parametrize(
    ("scope", "granted"),
    [
        ("read", frozenset({Scope.READ})),
        ("write", frozenset({Scope.WRITE})),
        ("viewer", frozenset({Scope.VIEWER})),
        ("operator", frozenset({Scope.VIEWER, Scope.OPERATOR})),
        ("admin", frozenset({Scope.VIEWER, Scope.OPERATOR, Scope.ADMIN})),
        ("root", frozenset[Scope]()),
    ],
)
def test_a_role_includes_the_roles_below_it_and_nothing_else(scope: str, granted: frozenset[Scope]) -> None:
    assert {required for required in Scope if is_granted(required, [scope])} == granted
