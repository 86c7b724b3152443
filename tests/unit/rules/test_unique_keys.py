"""Repeated keys in operators' JSON are rejected, by the parser and on every admin route."""

import pytest

from batchwright.api.schemas.json_body import MAX_BODY_BYTES
from batchwright.rules.json_text import RepeatedKey, check_unique_keys, unique_keys
from tests.fakes.api import error_of, open_api

TWICE = b'{"a": 1, "model": "m", "a": 2}'
ROUTES = [
    ("PUT", "/admin/models/m"),
    ("PUT", "/admin/quotas"),
    ("PUT", "/admin/rates"),
    ("PUT", "/admin/budget-groups/organization/o"),
    ("POST", "/admin/dlq/letter/retry"),
    ("POST", "/admin/dlq/retry-all"),
]


def test_the_pairs_become_a_dict() -> None:
    assert unique_keys([("a", 1), ("b", 1)]) == {"a": 1, "b": 1}
    with pytest.raises(RepeatedKey, match="it has the key 'b' twice: remove one of them"):
        unique_keys([("a", 1), ("b", 1), ("b", 1)])


@pytest.mark.parametrize(
    "text", [TWICE, b'{"b": [{"a": 1, "\\u0061": 2}]}', b'{"a": 1e999, "n": 0, "a": ' + b"9" * 5000 + b"}"]
)
def test_a_repeated_key_is_found_at_any_depth(text: bytes) -> None:
    with pytest.raises(RepeatedKey, match="'a' twice"):
        check_unique_keys(text)


def test_equal_keys_of_different_objects_are_not_repeated() -> None:
    check_unique_keys(b'{"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}], "n": ' + b"9" * 5000 + b"}")


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_an_admin_route_refuses_a_repeated_key(method: str, path: str) -> None:
    async with open_api() as api:
        refused = await api.http.request(method, path, content=TWICE)
        error = error_of(refused)
        assert (refused.status_code, error.code) == (400, "invalid_value")
        assert "it has the key 'a' twice" in error.message


async def test_json_nested_too_deeply_for_the_check_is_a_400() -> None:
    depth = 1020  # the parser's own limit is 1024
    body = b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    assert len(body) < MAX_BODY_BYTES
    async with open_api() as api:
        refused = await api.http.put("/admin/models/m", content=body)
        assert refused.status_code == 400


async def test_an_openai_route_uses_the_last_of_repeated_keys() -> None:
    async with open_api() as api:
        refused = await api.http.post("/v1/batches", content=TWICE)
        assert "twice" not in error_of(refused).message
