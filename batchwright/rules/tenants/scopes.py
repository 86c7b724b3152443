"""Scopes: what an API key or token allows its caller, and which scope each request needs."""

from collections.abc import Collection
from enum import StrEnum


class Scope(StrEnum):
    """A permission that an API key gives to the caller who sends it.

    `read` and `write` are for the data of the key's tenant. The other scopes are roles of operators.
    """

    READ = "read"
    WRITE = "write"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


# Each role of operators includes those before it. No other scope includes another one.
_ROLES = (Scope.VIEWER, Scope.OPERATOR, Scope.ADMIN)
# Areas of /admin whose changes need `operator`: they affect batches now, but no rights and no models.
_OPERATOR_AREAS = frozenset({"batches", "dlq", "holds", "rates"})


def required_scope(method: str, path: str) -> Scope:
    """Return the scope that a request needs. `is_granted` checks it.

    Below `/admin`, GET and HEAD need `viewer`. Other methods need `operator` for batches, dead letters, holds
    and rates, and `admin` for everything else. `/v1/stats` and `/metrics` need `viewer`. On all other paths,
    GET and HEAD need `read`, and other methods need `write`.
    """
    reads = method in ("GET", "HEAD")
    if path in ("/v1/stats", "/metrics"):
        return Scope.VIEWER
    if path != "/admin" and not path.startswith("/admin/"):
        return Scope.READ if reads else Scope.WRITE
    if reads:
        return Scope.VIEWER
    area = path.removeprefix("/admin/").partition("/")[0]
    return Scope.OPERATOR if area in _OPERATOR_AREAS else Scope.ADMIN


def is_granted(required: Scope, scopes: Collection[str]) -> bool:
    """Return True if a caller with `scopes` has the scope `required`, or a role that includes it.

    Unknown words in `scopes` are ignored.
    """
    sufficient = _ROLES[_ROLES.index(required) :] if required in _ROLES else (required,)
    return any(scope in scopes for scope in sufficient)
