"""The limits of bytes that an API process keeps in memory for clients and backends."""

import pytest

from batchwright.api.client_limits.held_bytes import HeldBytes
from batchwright.api.errors import ApiError
from tests.fakes.api import open_api

MIB = 1024 * 1024


def test_all_bytes_of_a_process_have_one_limit() -> None:
    held = HeldBytes(16 * MIB)
    with held.counted("a") as of_a, held.counted("b") as of_b, held.counted("c") as of_c:
        of_a(128 * MIB)
        with pytest.raises(ApiError):
            of_a(1)
        of_b(128 * MIB)
        with pytest.raises(ApiError):
            of_c(1)


def test_two_bodies_of_the_largest_size_always_fit() -> None:
    held = HeldBytes(200 * MIB)
    with held.counted("a") as of_body, held.counted("a") as of_answer:
        of_body(200 * MIB)
        of_answer(200 * MIB)
        with pytest.raises(ApiError):
            of_answer(1)


@pytest.mark.parametrize("setting", ["max_line_bytes", "max_response_bytes"])
async def test_the_limit_is_raised_for_the_largest_line_and_the_largest_response(setting: str) -> None:
    async with open_api(**{setting: 150 * MIB}) as api:
        assert (api.held_bytes.limit_per_tenant, api.held_bytes.limit) == (300 * MIB, 300 * MIB)


async def test_downloads_and_calls_count_towards_the_same_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_api() as api:
        monkeypatch.setattr(api.held_bytes, "limit", 1000)
        file = await api.upload()
        with api.held_bytes.counted("other") as held_for_other:
            held_for_other(1000)
            download = await api.http.get(f"/v1/files/{file.id}/content")
            call = await api.http.post("/queue/submit", json={"model": "llama", "payload": {"messages": []}})
        assert (download.status_code, call.status_code) == (429, 429)
