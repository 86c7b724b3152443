"""/v1/uploads: the parts of some are joined at once, and no more of them than may."""

import asyncio

import pytest

from api.joining import join
from tests.fakes.api import LINE, open_house
from tests.unit.test_api_uploads import complete, created, part


async def test_uploads_are_joined_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most = 0, 0

    async def slow(*arguments: object) -> object:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return await join(*arguments)  # pyright: ignore[reportArgumentType] - passed through

    monkeypatch.setattr("api.uploads.join", slow)
    async with open_house(api_completes=4) as house:
        uploads = [await created(house, bytes=len(LINE)) for _ in range(6)]
        ids = [[await part(house, upload)] for upload in uploads]
        answers = await asyncio.gather(*(map(complete, [house] * 6, uploads, ids)))
    assert (answers, most) == ([(200, None)] * 6, 2)


async def test_who_waits_too_long_for_an_upload_to_be_joined_may_try_again() -> None:
    async with open_house(api_completes=1, api_complete_wait_seconds=0) as house:
        upload = await created(house, bytes=len(LINE))
        ids = [await part(house, upload)]
        answers = await asyncio.gather(*(complete(house, upload, ids) for _ in range(2)))
        assert sorted(answers) == [(200, None), (429, "rate_limit_exceeded")]
        assert await complete(house, upload, ids) == (200, None)
