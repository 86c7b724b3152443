"""/v1/uploads: accepted and rejected bodies."""

from collections.abc import AsyncGenerator

import pytest

from tests.fakes.api import ApiFixture, error_of, open_api
from tests.unit.api.routes.test_uploads import BODY, created


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"bytes": 0}, "invalid_value", "bytes"),
        ({"bytes": 200 * 1024 * 1024 + 1}, "invalid_value", "bytes"),
        ({"bytes": 2**64}, "invalid_value", "bytes"),
        ({"bytes": "9"}, "invalid_type", "bytes"),
        ({"bytes": True}, "invalid_type", "bytes"),
        ({"purpose": "batch_output"}, "invalid_value", "purpose"),
        ({"filename": ""}, "invalid_value", "filename"),
        ({"mime_type": 1}, "invalid_type", "mime_type"),
        ({"mime_type": "x" * 256}, "invalid_value", "mime_type"),
        ({"colour": "red"}, "unknown_parameter", "colour"),
        ({"expires_after": {"anchor": "now", "seconds": 3600}}, "invalid_value", "expires_after.anchor"),
        (
            {"expires_after": {"anchor": "created_at", "seconds": 1}},
            "invalid_value",
            "expires_after.seconds",
        ),
    ],
)
async def test_a_wrong_field_is_named(
    api: ApiFixture, change: dict[str, object], code: str, param: str
) -> None:
    answer = await api.http.post("/v1/uploads", json={**BODY, **change})
    assert (answer.status_code, error_of(answer).code, error_of(answer).param) == (400, code, param)
    assert api.database.rows.uploads == {}


@pytest.mark.parametrize("field", ["filename", "purpose", "bytes", "mime_type"])
async def test_a_missing_field_is_named(api: ApiFixture, field: str) -> None:
    body = {name: value for name, value in BODY.items() if name != field}
    error = error_of(await api.http.post("/v1/uploads", json=body))
    assert (error.code, error.param) == ("missing_required_parameter", field)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "missing_required_parameter"),
        ({"part_ids": "x"}, "invalid_type"),
        ({"part_ids": [1]}, "invalid_type"),
        ({"part_ids": ["x"] * 10_001}, "invalid_value"),
        ({"part_ids": ["\x00"]}, "invalid_value"),
        ({"part_ids": ["x"], "md5": 1}, "invalid_type"),
        ({"part_ids": ["x"], "sha": ""}, "unknown_parameter"),
    ],
)
async def test_a_wrong_completion_is_refused(api: ApiFixture, body: dict[str, object], code: str) -> None:
    upload = await created(api)
    answer = await api.http.post(f"/v1/uploads/{upload.id}/complete", json=body)
    assert (answer.status_code, error_of(answer).code) == (400, code)


async def test_files_of_other_purposes_may_be_larger_than_when_sent_at_once(api: ApiFixture) -> None:
    assert (await created(api, purpose="user_data", bytes=8 * 1024**3)).bytes == 8 * 1024**3
