"""/v1/uploads: uploads are assembled concurrently, up to a limit."""

import asyncio

import pytest

from batchwright.api.services.files.upload_assembly import assemble
from tests.fakes.api import LINE, open_api, open_own_api
from tests.unit.api.routes.test_uploads import complete, created, part


async def test_uploads_are_joined_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most = 0, 0

    async def slow(*arguments: object) -> object:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return await assemble(*arguments)  # pyright: ignore[reportArgumentType] - passed through

    monkeypatch.setattr("batchwright.api.routes.uploads.assemble", slow)
    async with open_api() as api:
        uploads = [await created(api, bytes=len(LINE)) for _ in range(6)]
        ids = [[await part(api, upload)] for upload in uploads]
        answers = await asyncio.gather(*(map(complete, [api] * 6, uploads, ids)))
    assert (answers, most) == ([(200, None)] * 6, 2)


async def test_a_request_that_waits_too_long_for_the_assembly_gets_a_retry_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("batchwright.api.routes.uploads._ASSEMBLIES", 1)
    monkeypatch.setattr("batchwright.api.routes.uploads._ASSEMBLY_WAIT_SECONDS", 0)
    async with open_own_api() as api:
        upload = await created(api, bytes=len(LINE))
        ids = [await part(api, upload)]
        answers = await asyncio.gather(*(complete(api, upload, ids) for _ in range(2)))
        assert sorted(answers) == [(200, None), (429, "rate_limit_exceeded")]
        assert await complete(api, upload, ids) == (200, None)
