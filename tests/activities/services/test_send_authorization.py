"""Permissions are checked before each line is sent."""

import asyncio
import json
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from batchwright.activities.clock import suspend_aware_clock
from batchwright.activities.services.batch_cost_cap import BatchCosts
from batchwright.activities.services.daily_budgets import DailyBudgets, UsedUpBudget
from batchwright.activities.services.send_authorization import MAX_AGE_SECONDS, CachedPermissions, Permissions
from batchwright.contracts.temporal_payloads.batch import Caller
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import ApiKeyRow
from batchwright.rules.tenants.api_keys import SecretHash
from tests.activities.execution.fixture import (
    MODEL,
    TENANT,
    ExecutionFixture,
    content_of,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
)
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.tables.tenants.quotas import MemoryQuotas
from tests.integration.database.rows import START

KEY = "key_1"

pytestmark = pytest.mark.usefixtures("skipped_waits")


class StatedPermissions(Permissions):
    """Permissions of a single tenant. The test sets them."""

    def __init__(self) -> None:
        self.allowed, self.withdrawn = True, ""

    def may_use(self, tenant: str, model: str) -> bool:
        assert (tenant, model) == (TENANT, MODEL)
        return self.allowed

    def is_withdrawn(self, key_id: str) -> bool:
        return bool(key_id) and key_id == self.withdrawn

    def budget_exceeded(self, tenant: str, key_id: str, currency: str) -> UsedUpBudget | None:
        return None

    def record_usage(self, tenant: str, key_id: str, tokens: int, cost: int) -> None:
        assert tenant == TENANT


def known_of(database: MemoryDatabase, clock: Callable[[], float] = time.monotonic) -> CachedPermissions:
    budgets = DailyBudgets(database.quotas, database.budget_groups)
    return CachedPermissions(
        database.quotas, budgets, BatchCosts(database.progress), timedelta(days=1), clock
    )


async def planned_execution(
    lines: int, **settings: object
) -> tuple[ExecutionFixture, StatedPermissions, list[int]]:
    execution, permissions = ExecutionFixture(ok, **settings), StatedPermissions()
    execution.context.permissions = permissions
    return (
        execution,
        permissions,
        await plan_slice(execution.storage, [line_of(number) for number in range(lines)]),
    )


async def test_every_line_of_a_model_that_is_no_longer_allowed_is_rejected_and_none_sent() -> None:
    execution, permissions, offsets = await planned_execution(3)
    permissions.allowed = False
    result = await execution.run(request())
    assert (result.finished, result.completed, result.failed, execution.sent) == (True, 0, 3, [])
    records = await execution.settled()
    assert sorted(records) == offsets
    for number, offset in enumerate(offsets):
        line = json.loads(records[offset].payload)
        assert (line["custom_id"], line["response"], line["error"]["code"]) == (
            f"c-{number}",
            None,
            "policy_rejected",
        )
    assert execution.counted("batchwright_request_errors_by_model_total", model=MODEL) == 3


async def test_a_permission_removed_during_a_slice_rejects_the_rest_and_keeps_the_answers() -> None:
    execution, permissions, offsets = await planned_execution(5, model_in_flight=1)

    async def withdraw_at_the_second(http_request: httpx.Request) -> httpx.Response:
        if content_of(http_request) == "1":
            permissions.allowed = False
        return ok(content_of(http_request))

    execution.answer = withdraw_at_the_second
    result = await execution.run(request())
    assert (result.finished, result.completed, result.failed) == (True, 2, 3)
    assert execution.sent == ["0", "1"]
    records = await execution.settled()
    assert [records[offset].success for offset in offsets] == [True, True, False, False, False]


async def test_a_key_revoked_during_a_slice_rejects_only_the_rest_of_its_batch() -> None:
    execution, permissions, offsets = await planned_execution(4, model_in_flight=1)

    async def revoke_at_the_second(http_request: httpx.Request) -> httpx.Response:
        if content_of(http_request) == "1":
            permissions.withdrawn = KEY
        return ok(content_of(http_request))

    execution.answer = revoke_at_the_second
    result = await execution.run(request(caller=Caller(key_id=KEY)))
    assert (result.finished, result.completed, result.failed) == (True, 2, 2)
    error = json.loads((await execution.settled())[offsets[3]].payload)["error"]
    assert error == {
        "code": "policy_rejected",
        "message": f"The API key {KEY} that created the batch was revoked or has expired.",
    }
    other = request(batch_id="batch_" + "1" * 32, caller=Caller(key_id="key_2"))
    assert (await execution.run(other)).completed == 4


async def test_nothing_is_sent_while_permissions_are_unknown() -> None:
    execution, permissions, _ = await planned_execution(2)
    permissions.fresh_until = -math.inf
    running = execution.start(request())
    await eventually(lambda: bool(execution.server.heartbeats))
    assert execution.sent == []
    permissions.fresh_until = math.inf
    assert (await running).completed == 2


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_permissions_are_at_most_five_seconds_old() -> None:
    database, clock = MemoryDatabase(), Clock()
    known = known_of(database, clock)
    assert known.fresh_until < clock.now
    await known.refresh()
    clock.now = MAX_AGE_SECONDS
    assert known.fresh_until >= clock.now
    clock.now += 0.001
    assert known.fresh_until < clock.now
    assert MAX_AGE_SECONDS == 5


async def test_a_changed_permission_is_known_after_the_next_poll() -> None:
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


async def test_revoked_and_expired_keys_are_known_after_the_next_poll() -> None:
    database, now = MemoryDatabase(), datetime.now(UTC)
    await database.tenants.create("t", START)
    for id, expires_at in {"holds": None, "revoked": None, "expired": now}.items():
        row = ApiKeyRow(id=id, tenant="t", prefix=id, scopes=[], created_at=START, expires_at=expires_at)
        await database.api_keys.insert(row, SecretHash(b"", b""))
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


async def test_polling_continues_when_the_database_is_back() -> None:
    database = MemoryDatabase()
    database.rows.failing = DatabaseUnavailable("away")
    known = known_of(database)
    refreshing = asyncio.create_task(known.run())
    await asyncio.sleep(0)
    assert known.fresh_until == -math.inf
    database.rows.failing = None
    await eventually(lambda: known.fresh_until > time.monotonic())
    refreshing.cancel()


async def test_each_database_outage_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = MemoryDatabase()
    known = known_of(database)
    refreshing = asyncio.create_task(known.run())
    counts: list[int] = []
    for failing in (None, DatabaseUnavailable("away"), None, DatabaseUnavailable("away")):
        database.rows.failing = failing
        await asyncio.sleep(10 * MAX_AGE_SECONDS)
        counts.append(len(caplog.records))
    refreshing.cancel()
    assert counts == [0, 1, 1, 2]


async def test_the_age_of_permissions_counts_from_the_start_of_the_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database, clock = MemoryDatabase(), Clock()
    known, withdrawn_keys = known_of(database, clock), MemoryQuotas.withdrawn_keys

    async def slow(table: MemoryQuotas, since: datetime) -> frozenset[str]:
        clock.now = 4
        return await withdrawn_keys(table, since)

    monkeypatch.setattr(MemoryQuotas, "withdrawn_keys", slow)
    await known.refresh()
    assert (clock.now, known.fresh_until) == (4, MAX_AGE_SECONDS)


async def test_permissions_age_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    suspended = 0.0

    def clock_gettime(clock: int) -> float:
        return 100.0 + suspended

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    database = MemoryDatabase()
    budgets = DailyBudgets(database.quotas, database.budget_groups)
    known = CachedPermissions(database.quotas, budgets, BatchCosts(database.progress), timedelta(days=1))
    await known.refresh()
    assert known.fresh_until > suspend_aware_clock()
    suspended = 3600.0
    assert known.fresh_until < suspend_aware_clock()
