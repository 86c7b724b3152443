"""Every route there is: what of another tenant's it shows (nothing), and which keys open it.

The table is held against the application's own routes: one without an entry here fails.
"""

import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute, Route

from batchwright.rules.api_keys import ApiKey, Scope
from batchwright.rules.ids import new_batch_id, new_file_id, new_part_id, new_upload_id
from tests.fakes.api import House, error_of, open_house
from tests.fakes.keys import made_key

READ, WRITE, ADMIN, OPEN = Scope.READ, Scope.WRITE, Scope.ADMIN, None
TOKEN = "token"  # what stands in the path is the key
_ID = re.compile(r"(batch_|file-|upload_|part_)[0-9a-f]{32}")
_TIME = re.compile(r"\b[0-9]{10}\b")


@dataclass(frozen=True)
class Ids:
    """Of things that somebody may or may not have; `own_upload` is the caller's."""

    file: str
    image: str  # a file that no batch can read
    batch: str
    upload: str
    part: str
    own_upload: str = ""


def unknown() -> Ids:
    return Ids(new_file_id(), new_file_id(), new_batch_id(), new_upload_id(), new_part_id())


class Call:
    """A request that names ids: `{file}` in its path, query and body stands for that id."""

    def __init__(
        self, path: str, body: Mapping[str, str | list[str]] | None = None, *, form: bool = False
    ) -> None:
        self._path, self._body, self._form = path, body, form

    async def send(self, house: House, method: str, ids: Ids, key: ApiKey) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key.text}"}
        path = self._path.format_map(vars(ids))
        if self._form:
            return await house.http.request(method, path, headers=headers, files={"data": b"bytes"})
        body = (
            None if self._body is None else {name: _filled(value, ids) for name, value in self._body.items()}
        )
        return await house.http.request(method, path, headers=headers, json=body)


def _filled(value: str | list[str], ids: Ids) -> str | list[str]:
    if isinstance(value, str):
        return value.format_map(vars(ids))
    return [item.format_map(vars(ids)) for item in value]


def creation(file: str) -> Call:
    body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return Call("/v1/batches", body)


UPLOAD, BATCH, FILE = "/v1/uploads/{upload}", "/v1/batches/{batch}", "/v1/files/{file}"
# The scope that a route needs, and calls of it with ids of what may be another tenant's.
TABLE: dict[str, tuple[Scope | str | None, list[Call]]] = {
    "GET /v1/files": (READ, [Call("/v1/files?after={file}")]),
    "POST /v1/files": (WRITE, []),
    "GET /v1/files/{file_id}": (READ, [Call(FILE)]),
    "DELETE /v1/files/{file_id}": (WRITE, [Call(FILE), Call("/v1/files/{image}")]),
    "GET /v1/files/{file_id}/content": (READ, [Call(FILE + "/content")]),
    "POST /v1/uploads": (WRITE, []),
    "POST /v1/uploads/{upload_id}/parts": (WRITE, [Call(UPLOAD + "/parts", form=True)]),
    "POST /v1/uploads/{upload_id}/complete": (
        WRITE,
        [
            Call(UPLOAD + "/complete", {"part_ids": ["{part}"]}),
            Call("/v1/uploads/{own_upload}/complete", {"part_ids": ["{part}"]}),
        ],
    ),
    "POST /v1/uploads/{upload_id}/cancel": (WRITE, [Call(UPLOAD + "/cancel")]),
    "POST /v1/batches": (WRITE, [creation("{file}"), creation("{image}")]),
    "GET /v1/batches": (READ, [Call("/v1/batches?after={batch}")]),
    "GET /v1/batches/{batch_id}": (READ, [Call(BATCH)]),
    "POST /v1/batches/{batch_id}/cancel": (WRITE, [Call(BATCH + "/cancel")]),
    "POST /v1/batches/{batch_id}/x/pause": (WRITE, [Call(BATCH + "/x/pause")]),
    "POST /v1/batches/{batch_id}/x/resume": (WRITE, [Call(BATCH + "/x/resume")]),
    "POST /v1/batches/{batch_id}/x/retry": (WRITE, [Call(BATCH + "/x/retry")]),
    "GET /v1/batches/{batch_id}/x/state": (READ, [Call(BATCH + "/x/state")]),
    "GET /v1/models": (READ, []),
    "GET /v1/models/{model}": (READ, []),
    "GET /v1/x/limits": (READ, []),
    "GET /admin/rates": (ADMIN, []),
    "PUT /admin/rates": (ADMIN, []),
    "DELETE /admin/rates": (ADMIN, []),
    "GET /admin/quotas": (ADMIN, []),
    "PUT /admin/quotas": (ADMIN, []),
    "DELETE /admin/quotas": (ADMIN, []),
    "GET /admin/quotas/{tenant}": (ADMIN, []),
    "GET /admin/organizations": (ADMIN, []),
    "GET /admin/organizations/{name}": (ADMIN, []),
    "PUT /admin/organizations/{name}": (ADMIN, []),
    "DELETE /admin/organizations/{name}": (ADMIN, []),
    "GET /admin/users": (ADMIN, []),
    "GET /admin/users/{tenant}/{name}": (ADMIN, []),
    "PUT /admin/users/{tenant}/{name}": (ADMIN, []),
    "DELETE /admin/users/{tenant}/{name}": (ADMIN, []),
    "GET /admin/models": (ADMIN, []),
    "PUT /admin/models/{model}": (ADMIN, []),
    "DELETE /admin/models/{model}": (ADMIN, []),
    "GET /admin/model-configs/{model}": (ADMIN, []),
    "DELETE /admin/model-configs/{model}": (ADMIN, []),
    "GET /admin/dlq": (ADMIN, []),
    "POST /admin/dlq/retry-all": (ADMIN, []),
    "POST /admin/dlq/{letter_id}/retry": (ADMIN, []),
    "DELETE /admin/dlq/{letter_id}": (ADMIN, []),
    "GET /v1/stats": (ADMIN, []),
    "POST /tasks/callback/{token}": (TOKEN, []),
    "GET /healthz": (OPEN, []),
    "GET /readyz": (OPEN, []),
    "GET /metrics": (OPEN, []),
    "GET /openapi.json": (OPEN, []),
    "GET /docs": (OPEN, []),
}


def routes_of(app: FastAPI) -> Iterator[str]:
    """`GET /v1/files` and so on: of the application's own table, whether or not it is described."""
    yield from _named(app.routes)


def _named(routes: Sequence[BaseRoute]) -> Iterator[str]:
    for route in routes:
        if isinstance(route, Route):
            yield from (
                f"{method} {route.path.replace(':path', '')}"
                for method in (route.methods or ())
                if method != "HEAD"
            )
        else:  # a router that was included
            yield from _named(getattr(route, "original_router").routes)  # noqa: B009


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house(auth="api_key", auth_failures_per_minute=0) as house:
        yield house


async def belongings(house: House, key: ApiKey) -> Ids:
    """What a tenant has: files, an unfinished batch, an upload with a part."""
    client = house.openai.with_options(api_key=key.text)
    file = await client.files.create(file=("in.jsonl", b'{"custom_id": "a", "body": {}}\n'), purpose="batch")
    image = await client.files.create(file=("in.png", b"png"), purpose="vision")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    upload = await client.uploads.create(bytes=5, filename="a", mime_type="text/plain", purpose="vision")
    part = await client.uploads.parts.create(upload.id, data=b"bytes")
    return Ids(file.id, image.id, batch.id, upload.id, part.id, own_upload=upload.id)


def held_by(house: House, tenant: str) -> str:
    """All that the tenant has, and what its batches were told."""
    rows = house.database.rows
    tables = (rows.files, rows.batches, rows.uploads, rows.parts)
    mine = [value for table in tables for key, value in table.items() if key[0] == tenant]
    objects = sorted(key for key in house.storage.objects)
    return repr((mine, objects, house.temporal.signals))


def told(answer: httpx.Response) -> tuple[int, str, dict[str, str]]:
    """An answer without what differs from one answer to the next."""
    headers = {name: value for name, value in answer.headers.items() if name != "x-request-id"}
    return answer.status_code, _TIME.sub("TIME", _ID.sub("ID", answer.text)), headers


async def test_every_route_has_an_entry_and_every_entry_a_route(house: House) -> None:
    assert sorted(routes_of(house.app)) == sorted(TABLE)


@pytest.mark.parametrize("route", [route for route, (_, calls) in TABLE.items() if calls])
async def test_what_is_another_tenants_is_as_what_does_not_exist(route: str, house: House) -> None:
    blue, red = await made_key(house.database, "blue"), await made_key(house.database, "red")
    theirs, own = await belongings(house, blue), await belongings(house, red)
    method, (_, calls) = route.split(" ")[0], TABLE[route]
    before = held_by(house, "blue")
    answers: list[tuple[int, str, dict[str, str]]] = []
    for call in calls:
        foreign = await call.send(house, method, replace(theirs, own_upload=own.upload), red)
        nothing = await call.send(house, method, replace(unknown(), own_upload=own.upload), red)
        answers.append(told(foreign))
        assert told(foreign) == told(nothing)
    assert held_by(house, "blue") == before
    # The owner is told something else: these calls can tell.
    assert [told(await call.send(house, method, theirs, blue)) for call in calls] != answers


@pytest.mark.parametrize("route", TABLE)
async def test_a_route_opens_to_the_scope_it_needs_and_to_no_other(route: str, house: House) -> None:
    wanted, _ = TABLE[route]
    method, path = route.split(" ")
    names: list[str] = ["file_id", "upload_id", "batch_id", "model", "tenant", "letter_id", "token", "name"]
    path = path.format_map(dict.fromkeys(names, "x"))
    without = await house.http.request(method, path)
    if wanted is OPEN:
        assert without.status_code == 200
        return
    if wanted == TOKEN:
        assert (without.status_code, error_of(without).code) == (401, "invalid_callback_token")
        return
    assert (without.status_code, error_of(without).code) == (401, "invalid_api_key")
    for scope in Scope:
        key = await made_key(house.database, "blue", scopes=[scope])
        answer = await house.http.request(method, path, headers={"Authorization": f"Bearer {key.text}"})
        if scope is wanted:
            assert answer.status_code not in (401, 403)
        else:
            assert (answer.status_code, error_of(answer).code) == (403, "missing_scope")
            assert f"'{wanted}'" in error_of(answer).message
