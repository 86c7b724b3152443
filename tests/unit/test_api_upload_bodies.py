"""/v1/uploads: what bodies may say."""

from collections.abc import AsyncGenerator

import pytest

from tests.fakes.api import House, error_of, open_house
from tests.unit.test_api_uploads import BODY, created


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house() as house:
        yield house


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
async def test_a_wrong_field_is_named(house: House, change: dict[str, object], code: str, param: str) -> None:
    answer = await house.http.post("/v1/uploads", json={**BODY, **change})
    assert (answer.status_code, error_of(answer).code, error_of(answer).param) == (400, code, param)
    assert house.database.rows.uploads == {}


@pytest.mark.parametrize("field", ["filename", "purpose", "bytes", "mime_type"])
async def test_a_missing_field_is_named(house: House, field: str) -> None:
    body = {name: value for name, value in BODY.items() if name != field}
    error = error_of(await house.http.post("/v1/uploads", json=body))
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
async def test_a_wrong_completion_is_refused(house: House, body: dict[str, object], code: str) -> None:
    upload = await created(house)
    answer = await house.http.post(f"/v1/uploads/{upload.id}/complete", json=body)
    assert (answer.status_code, error_of(answer).code) == (400, code)


async def test_files_of_other_purposes_may_be_larger_than_when_sent_at_once(house: House) -> None:
    assert (await created(house, purpose="user_data", bytes=8 * 1024**3)).bytes == 8 * 1024**3
