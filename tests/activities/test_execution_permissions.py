"""Before each line is sent: may its tenant still use the model?"""

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from activities.slices.budgets import TokenBudgets
from activities.slices.permissions import MAX_AGE_SECONDS, KnownPermissions, Permissions
from batchwright.contracts.batch import Caller
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tenant_rows import KeyRow
from batchwright.rules.api_keys import Kept
from tests.activities.execution_house import (
    MODEL,
    TENANT,
    House,
    content_of,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
)
from tests.fakes.database import MemoryDatabase
from tests.integration.rows import START

KEY = "key_1"

pytestmark = pytest.mark.usefixtures("skipped_waits")


class Said(Permissions):
    """What a test says of its one tenant."""

    def __init__(self) -> None:
        self.fresh, self.allowed, self.withdrawn = True, True, ""

    @property
    def is_fresh(self) -> bool:
        return self.fresh

    def may_use(self, tenant: str, model: str) -> bool:
        assert (tenant, model) == (TENANT, MODEL)
        return self.allowed

    def is_withdrawn(self, key_id: str) -> bool:
        return bool(key_id) and key_id == self.withdrawn

    def exhausted(self, tenant: str, key_id: str) -> str:
        return ""

    def spend(self, tenant: str, key_id: str, tokens: int) -> None:
        assert tenant == TENANT


def known_of(database: MemoryDatabase, clock: Callable[[], float] = time.monotonic) -> KnownPermissions:
    return KnownPermissions(database.quotas, TokenBudgets(database.quotas, 0), timedelta(days=1), clock)


async def a_house(lines: int, **settings: object) -> tuple[House, Said, list[int]]:
    house, said = House(ok, **settings), Said()
    house.tools.permissions = said
    return house, said, await plan_slice(house.storage, [line_of(number) for number in range(lines)])


async def test_every_line_of_a_model_that_was_withdrawn_is_rejected_and_none_sent() -> None:
    house, said, offsets = await a_house(3)
    said.allowed = False
    result = await house.run(request())
    assert (result.finished, result.completed, result.failed, house.sent) == (True, 0, 3, [])
    records = await house.settled()
    assert sorted(records) == offsets
    for number, offset in enumerate(offsets):
        line = json.loads(records[offset].payload)
        assert (line["custom_id"], line["response"], line["error"]["code"]) == (
            f"c-{number}",
            None,
            "policy_rejected",
        )
    assert house.counted("batchwright_request_errors_by_model_total", model=MODEL) == 3


async def test_a_model_withdrawn_in_mid_slice_ends_the_rest_and_keeps_what_was_answered() -> None:
    house, said, offsets = await a_house(5, model_in_flight=1)

    async def withdraw_at_the_second(asked: httpx.Request) -> httpx.Response:
        if content_of(asked) == "1":
            said.allowed = False
        return ok(content_of(asked))

    house.answer = withdraw_at_the_second
    result = await house.run(request())
    assert (result.finished, result.completed, result.failed) == (True, 2, 3)
    assert house.sent == ["0", "1"]
    records = await house.settled()
    assert [records[offset].success for offset in offsets] == [True, True, False, False, False]


async def test_a_key_revoked_in_mid_slice_ends_the_rest_of_its_batch_and_of_no_other() -> None:
    house, said, offsets = await a_house(4, model_in_flight=1)

    async def revoke_at_the_second(asked: httpx.Request) -> httpx.Response:
        if content_of(asked) == "1":
            said.withdrawn = KEY
        return ok(content_of(asked))

    house.answer = revoke_at_the_second
    result = await house.run(request(caller=Caller(key_id=KEY)))
    assert (result.finished, result.completed, result.failed) == (True, 2, 2)
    error = json.loads((await house.settled())[offsets[3]].payload)["error"]
    assert error == {
        "code": "policy_rejected",
        "message": f"The API key {KEY} that created the batch was revoked or has expired.",
    }
    other = request(batch_id="batch_" + "1" * 32, caller=Caller(key_id="key_2"))
    assert (await house.run(other)).completed == 4


async def test_nothing_is_sent_while_it_is_not_known_what_holds() -> None:
    house, said, _ = await a_house(2)
    said.fresh = False
    running = house.start(request())
    await eventually(lambda: bool(house.server.heard))
    assert house.sent == []
    said.fresh = True
    assert (await running).completed == 2


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_what_is_known_is_at_most_five_seconds_old() -> None:
    database, clock = MemoryDatabase(), Clock()
    known = known_of(database, clock)
    assert not known.is_fresh
    await known.refresh()
    clock.now = MAX_AGE_SECONDS
    assert known.is_fresh
    clock.now += 0.001
    assert not known.is_fresh
    assert MAX_AGE_SECONDS == 5


async def test_a_change_is_known_after_the_next_look() -> None:
    database = MemoryDatabase()
    known = known_of(database)
    await known.refresh()
    assert known.may_use("t", "m")
    await database.quotas.change("t", {"models": frozenset({"other"})}, START)
    await known.refresh()
    assert (known.may_use("t", "m"), known.may_use("t", "other"), known.may_use("u", "m")) == (
        False,
        True,
        True,
    )


async def test_keys_that_were_revoked_or_have_expired_are_known_after_the_next_look() -> None:
    database, now = MemoryDatabase(), datetime.now(UTC)
    await database.tenants.create("t", START)
    for id, expires_at in {"holds": None, "revoked": None, "expired": now}.items():
        row = KeyRow(id=id, tenant="t", prefix=id, scopes=[], created_at=START, expires_at=expires_at)
        await database.api_keys.insert(row, Kept(b"", b""))
    await database.api_keys.revoke("revoked", now)
    known = known_of(database)
    assert not known.is_withdrawn("revoked")
    await known.refresh()
    assert [known.is_withdrawn(id) for id in ("holds", "revoked", "expired", "")] == [
        False,
        True,
        True,
        False,
    ]


async def test_looking_goes_on_when_the_database_is_back() -> None:
    database = MemoryDatabase()
    database.rows.failing = DatabaseUnavailable("away")
    known = known_of(database)
    looking = asyncio.create_task(known.run())
    await asyncio.sleep(0)
    assert not known.is_fresh
    database.rows.failing = None
    await eventually(lambda: known.is_fresh)
    looking.cancel()


async def test_a_database_that_is_away_is_told_once_each_time_it_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = MemoryDatabase()
    known = known_of(database)
    looking = asyncio.create_task(known.run())
    told: list[int] = []
    for failing in (None, DatabaseUnavailable("away"), None, DatabaseUnavailable("away")):
        database.rows.failing = failing
        await asyncio.sleep(10 * MAX_AGE_SECONDS)
        told.append(len(caplog.records))
    looking.cancel()
    assert told == [0, 1, 1, 2]
