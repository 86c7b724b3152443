"""The table of quotas.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.activities.services.holds_caps_and_weights import StoredTenantSettings
from batchwright.contracts.temporal_payloads.batch import BatchPolicy, Caller
from batchwright.contracts.terms import BatchStatus, OverQuota, Quota
from batchwright.database.database import Database
from batchwright.database.driver import DatabaseConnection
from batchwright.database.records import ApiKeyRow, PartRow, UploadRow
from batchwright.database.tables.tenants.quota_records import (
    DailyUsage,
    KeyBudget,
    KeyCap,
    QuotaUsage,
    TenantQuotas,
    TenantShare,
)
from batchwright.inference.limits.tenant_and_model_limits import NO_RATES, FleetRate, Rates
from batchwright.rules.tenants.api_keys import SecretHash
from batchwright.rules.tenants.quotas import DailyAmounts, EnqueuedWork, QuotaExcess, QuotaLimits
from batchwright.rules.tenants.scopes import Scope
from batchwright.rules.worker_stats import running_slice_stats
from tests.fakes.token_usage import publish_usage, this_day
from tests.integration.database.admission_rows import admit_bytes
from tests.integration.database.rows import (
    LONG_AGO,
    START,
    SetHeartbeatAge,
    a_file,
    after,
    an_order,
    an_outcome,
    slice_progress,
)
from tests.integration.database.webhook_rows import an_endpoint, create

HOUR = timedelta(hours=1)
TIGHT = QuotaLimits(enqueued_lines=10, enqueued_tokens=1000)


async def enqueue(
    database: Database, id: str, lines: int, tokens: int = 0, tenant: str = "t"
) -> QuotaExcess | None:
    await database.batches.upsert(an_order(id, tenant))
    return await database.quotas.reserve(tenant, id, EnqueuedWork(lines, tokens), TIGHT)


async def begin(database: Database, id: str, lines: int) -> None:
    assert await database.batches.start("t", id, total=lines, models=[], at=after(1))


async def test_quotas_of_a_tenant_are_set_one_by_one_and_cleared(any_database: Database) -> None:
    quotas = any_database.quotas
    assert await quotas.get("t") == TenantQuotas()
    assert await quotas.change("t", {"live_batches": 3}, START) == TenantQuotas(live_batches=3)
    limited = TenantQuotas(enqueued_lines=0, tokens_per_day=9, webhooks=3)
    both = TenantQuotas(live_batches=3, models=frozenset({"a", "b"}))
    assert await quotas.change("t", {"models": frozenset({"b", "a"})}, after(1)) == both
    shared: dict[str, object] = {"weight": 2.5, "max_in_flight": 2**53 - 1}
    assert await quotas.change("v", shared, START) == TenantQuotas(weight=2.5, max_in_flight=2**53 - 1)
    assert (await quotas.change("v", {"max_priority": 4}, START)).max_priority == 4
    assert (await quotas.change("v", {"max_priority": None}, START)).highest_priority == 5
    assert await quotas.change("v", {"weight": None}, START) == TenantQuotas(max_in_flight=2**53 - 1)
    assert (await quotas.change("v", {"over_quota": OverQuota.WAIT}, START)).over_quota is OverQuota.WAIT
    assert (await quotas.change("v", {"over_quota": None}, START)).over_quota is None
    await quotas.clear("v")
    assert (
        await quotas.change("u", {"enqueued_lines": 0, "tokens_per_day": 9, "webhooks": 3}, START) == limited
    )
    assert await quotas.get("t") == both
    assert [(row.tenant, row.own, row.changed_at) for row in await quotas.all()] == [
        ("t", both, after(1)),
        ("u", limited, START),
    ]
    assert (await quotas.change("t", {"models": None}, after(2))).models is None
    await quotas.clear("t")
    await quotas.clear("t")
    assert [row.tenant for row in await quotas.all()] == ["u"]


async def test_weights_and_caps_are_listed_with_the_workers_that_run_slices_of_the_tenant(
    any_database: Database, set_heartbeat_age: SetHeartbeatAge
) -> None:
    database, quotas = any_database, any_database.quotas
    assert await quotas.shares(HOUR) == []
    for tenant, id in (("t", "batch_1"), ("t", "batch_2"), ("u", "batch_3")):
        await database.batches.upsert(an_order(id, tenant))
    await quotas.change("u", {"live_batches": 1}, START)
    await quotas.change("t", {"max_in_flight": 8}, START)
    await quotas.change("v", {"weight": 0.25}, START)
    running = {
        "b": {("batch_1", "m"): 2, ("batch_2", "m/n o"): 1},
        "a": {("batch_2", "m"): 1, ("batch_3", "m"): 1},
        "of another tenant": {("batch_3", "m"): 1},
        "idle": {},
    }
    for worker, slices in running.items():
        await database.workers.record_heartbeat(worker, running_slice_stats(slices))
    gone = running_slice_stats({("batch_1", "m"): 1})
    await database.workers.record_heartbeat("gone", gone)
    await set_heartbeat_age("gone", HOUR.total_seconds() + 1)
    assert await quotas.shares(HOUR) == [
        TenantShare("t", None, 8, ["a", "b"], live_workers=4),
        TenantShare("v", 0.25, None, [], live_workers=4),
    ]
    await quotas.change("v", {"max_in_flight": 1}, START)
    await quotas.clear("t")
    assert await quotas.shares(HOUR) == [TenantShare("v", 0.25, 1, [], live_workers=4)]


async def test_workers_read_a_rate_of_a_tenant_when_it_was_changed(any_database: Database) -> None:
    database, quotas = any_database, any_database.quotas
    await database.batches.upsert(an_order("batch_1", "t"))
    workers = {name: StoredTenantSettings(database, name) for name in ("a", "b", "new")}
    for name in ("a", "b"):
        await database.workers.record_heartbeat(name, running_slice_stats({("batch_1", "m"): 1}))
    await database.workers.record_heartbeat("new", {})
    for requests, tokens, parts in (
        (600, None, [Rates(FleetRate(600, 300.0)), Rates(FleetRate(600, 300.0)), Rates(FleetRate(600, 0.0))]),
        (None, 7, [Rates(None, FleetRate(7, part)) for part in (4.0, 3.0, 0.0)]),
        (None, None, [NO_RATES] * 3),
    ):
        changes: dict[str, object] = {
            "backend_requests_per_minute": requests,
            "backend_tokens_per_minute": tokens,
        }
        await quotas.change("t", changes, START)
        for shares in workers.values():
            await shares.refresh()
        assert [shares.rates.get("t", NO_RATES) for shares in workers.values()] == parts


async def test_caps_of_keys_are_listed_with_the_workers_that_run_slices_of_their_batches(
    any_database: Database,
) -> None:
    database, keys = any_database, any_database.api_keys
    await database.tenants.create("t", START)
    for number in (1, 2, 3):
        row = ApiKeyRow(
            id=f"key_{number}", tenant="t", prefix=f"k{number}", scopes=[Scope.READ], created_at=START
        )
        await keys.insert(row.model_copy(update={"max_in_flight": 9}), SecretHash(b"salt", b"hash"))
        of_key = BatchPolicy(caller=Caller(key_id=row.id))
        await database.batches.upsert(an_order(f"batch_{number}", "t", policy=of_key))
    for worker, id in (("b", "batch_1"), ("a", "batch_1"), ("c", "batch_2")):
        await database.workers.record_heartbeat(worker, running_slice_stats({(id, "m"): 1}))
    capped = await keys.limit("key_1", max_in_flight=4)
    assert capped is not None
    assert capped.max_in_flight == 4
    both = await keys.limit("k2", tokens_per_day=50, max_in_flight=0)
    assert both is not None
    assert (both.tokens_per_day, both.max_in_flight) == (50, None)
    assert await keys.revoke("key_3", START) is not None
    assert await keys.limit("key_4", max_in_flight=1) is None
    assert await database.quotas.key_caps(HOUR) == [KeyCap("key_1", 4, ["a", "b"])]
    assert [row.max_in_flight for row in await keys.all()] == [4, None, 9]


async def test_the_cap_of_a_key_lists_only_live_workers_and_live_batches_of_the_key(
    any_database: Database, set_heartbeat_age: SetHeartbeatAge
) -> None:
    database, keys = any_database, any_database.api_keys
    for number, tenant in ((2, "u"), (1, "t")):
        await database.tenants.create(tenant, START)
        row = ApiKeyRow(
            id=f"key_{number}", tenant=tenant, prefix=f"k{number}", scopes=[Scope.READ], created_at=START
        )
        await keys.insert(row.model_copy(update={"max_in_flight": 9}), SecretHash(b"salt", b"hash"))
    owners = {"running": ("t", "key_1"), "finalizing": ("t", "key_1"), "ended": ("t", "key_1")}
    for id, (tenant, key_id) in {**owners, "keyless": ("t", ""), "foreign": ("u", "key_1")}.items():
        policy = BatchPolicy(caller=Caller(key_id=key_id))
        await database.batches.upsert(an_order(id, tenant, policy=policy))
        await database.batches.start(tenant, id, total=1, models=[], at=after(1))
        stats = running_slice_stats({(id, "m"): 1, (id, "n"): 1})
        await database.workers.record_heartbeat(f"worker of {id}", stats)
    await database.batches.start_finalizing("t", "finalizing", after(2))
    await database.batch_ends.end_without_files("t", "ended", BatchStatus.FAILED, [], after(2))
    await database.workers.record_heartbeat("stopped", running_slice_stats({("running", "m"): 1}))
    await set_heartbeat_age("stopped", 3601)
    assert await database.quotas.key_caps(HOUR) == [
        KeyCap("key_1", 9, ["worker of finalizing", "worker of running"]),
        KeyCap("key_2", 9, []),
    ]


@pytest.mark.parametrize("weight", ["0", "-1", "1001", "'NaN'", "'Infinity'"])
async def test_postgresql_refuses_a_weight_that_would_stop_a_tenant(
    connection: DatabaseConnection, weight: str
) -> None:
    row = f"INSERT INTO quotas (tenant, weight, changed_at) VALUES ('t', {weight}, now())"
    with pytest.raises(Exception, match="quotas_weight_check"):
        await connection.execute(row)


async def test_the_usage_of_workers_is_summed_and_a_repeated_report_counts_once(
    any_database: Database,
) -> None:
    quotas, today = any_database.quotas, this_day()
    yesterday = today - timedelta(days=1)
    for _ in range(2):
        usage = (DailyUsage("t", "", 10), DailyUsage("t", "key_1", 5), DailyUsage("u", "", 7))
        await publish_usage(quotas, "a", *usage, today=today)
    await publish_usage(quotas, "a", DailyUsage("t", "", 9), today=today)  # what was overtaken
    await publish_usage(quotas, "a", today=today)
    await publish_usage(quotas, "b", DailyUsage("t", "key_1", 100), today=today)
    await quotas.publish_usage("a", yesterday, [DailyUsage("t", "", 1000)])
    assert sorted(await quotas.daily_usage(today, except_for="b")) == [
        DailyUsage("t", "", 10),
        DailyUsage("t", "key_1", 5),
        DailyUsage("u", "", 7),
    ]
    assert await quotas.daily_usage(today, except_for="a") == [DailyUsage("t", "key_1", 100)]
    assert sum(spent.tokens for spent in await quotas.daily_usage(today)) == 122
    assert [(await quotas.used(tenant)).tokens_per_day for tenant in ("t", "u", "v")] == [115, 7, 0]
    await quotas.delete_usage(today)
    assert await quotas.daily_usage(yesterday) == []
    assert (await quotas.used("t")).tokens_per_day == 115


async def test_a_key_has_its_own_budget_until_it_is_removed(any_database: Database) -> None:
    await any_database.tenants.create("t", START)
    row = ApiKeyRow(id="key_1", tenant="t", prefix="abc", scopes=[Scope.READ], created_at=START)
    await any_database.api_keys.insert(row, SecretHash(b"salt", b"hash"))
    quotas, keys = any_database.quotas, any_database.api_keys
    assert await quotas.key_budget("t", "key_1") == KeyBudget(DailyAmounts(), DailyAmounts())
    assert (await quotas.key_budgets(), await keys.limit("key_2", tokens_per_day=1)) == ({}, None)
    assert await keys.limit("abc", tokens_per_day=50) == row.model_copy(update={"tokens_per_day": 50})
    await publish_usage(quotas, "a", DailyUsage("t", "key_1", 20), DailyUsage("t", "", 1))
    assert (await quotas.key_budgets(), await quotas.key_budget("t", "key_1")) == (
        {("t", "key_1"): DailyAmounts(50)},
        KeyBudget(DailyAmounts(50), DailyAmounts(20)),
    )
    assert await quotas.key_budget("u", "key_1") is None
    assert [one.tokens_per_day for one in await keys.all("t")] == [50]
    await keys.limit("key_1", tokens_per_day=0, cost_per_day="0.5")
    await publish_usage(quotas, "b", DailyUsage("t", "key_1", 0, 3))
    assert await quotas.key_budgets() == {("t", "key_1"): DailyAmounts(0, 5 * 10**11)}
    assert await quotas.key_budget("t", "key_1") == KeyBudget(
        DailyAmounts(0, 5 * 10**11), DailyAmounts(20, 3)
    )
    await keys.limit("key_1", cost_per_day="0")
    assert await quotas.key_budgets() == {}


async def test_keys_that_became_invalid_since_a_given_time_are_listed(any_database: Database) -> None:
    now = datetime.now(UTC)
    await any_database.tenants.create("t", START)
    row = ApiKeyRow(id="key", tenant="t", prefix="key", scopes=[Scope.READ], created_at=START)
    ends = {"holds": None, "runs": now + timedelta(days=1), "expired": now, "long_ago": LONG_AGO}
    for id, expires_at in {**ends, "revoked": None, "revoked_long_ago": None}.items():
        key = row.model_copy(update={"id": id, "prefix": id, "expires_at": expires_at})
        await any_database.api_keys.insert(key, SecretHash(b"salt", b"hash"))
    await any_database.api_keys.revoke("revoked", now)
    await any_database.api_keys.revoke("revoked_long_ago", LONG_AGO)
    since = now - timedelta(days=1)
    assert await any_database.quotas.withdrawn_keys(since) == {"expired", "revoked"}


async def test_an_empty_set_of_models_permits_no_model_and_no_set_permits_every_model(
    any_database: Database,
) -> None:
    own = await any_database.quotas.change("t", {"models": frozenset()}, START)
    assert await any_database.quotas.get("t") == own
    assert not own.may_use("a")
    assert TenantQuotas().may_use("a")


async def test_a_batch_that_exceeds_the_enqueued_quota_gets_the_excess(any_database: Database) -> None:
    assert await enqueue(any_database, "batch_1", 7) is None
    assert await enqueue(any_database, "batch_2", 4) == QuotaExcess(Quota.ENQUEUED_LINES, 10, 7, 4)
    assert await enqueue(any_database, "batch_3", 3, 1001) == QuotaExcess(
        Quota.ENQUEUED_TOKENS, 1000, 0, 1001
    )
    assert await enqueue(any_database, "batch_4", 3, 1000) is None
    assert await enqueue(any_database, "batch_5", 10, tenant="another") is None


async def test_a_batch_that_is_enqueued_again_replaces_its_own_reservation(any_database: Database) -> None:
    assert await enqueue(any_database, "batch_1", 10) is None
    assert await enqueue(any_database, "batch_1", 9) is None
    assert (await any_database.quotas.used("t")).enqueued_lines == 9
    await begin(any_database, "batch_1", 9)
    assert await enqueue(any_database, "batch_1", 11) is None
    assert (await any_database.quotas.used("t")).enqueued_lines == 9


async def test_concurrent_reservations_do_not_exceed_the_quota(any_database: Database) -> None:
    found = await asyncio.gather(*(enqueue(any_database, f"batch_{n}", 4) for n in range(5)))
    assert sum(excess is None for excess in found) == 2
    assert (await any_database.quotas.used("t")).enqueued_lines == 8


async def test_settled_lines_release_their_quota_at_once_and_tokens_in_proportion(
    any_database: Database,
) -> None:
    await enqueue(any_database, "batch_1", 10, 991)
    await begin(any_database, "batch_1", 10)
    await any_database.progress.record(
        [slice_progress(0, completed=3, failed=1), slice_progress(1, completed=2)]
    )
    used = await any_database.quotas.used("t")
    assert (used.enqueued_lines, used.enqueued_tokens) == (4, 397)  # rounded up
    assert await enqueue(any_database, "batch_2", 6, 600) is None


async def test_an_attempt_that_lost_results_uses_the_quota_again(any_database: Database) -> None:
    await enqueue(any_database, "batch_1", 10)
    await begin(any_database, "batch_1", 10)
    await any_database.progress.record([slice_progress(0, completed=8)])
    await any_database.progress.record([slice_progress(0, attempt=2, completed=5)])
    assert (await any_database.quotas.used("t")).enqueued_lines == 5


async def test_every_end_of_a_batch_releases_its_remaining_quota(any_database: Database) -> None:
    ends = (BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED, BatchStatus.FAILED)
    for status in ends:
        id = f"batch_{status}"
        assert await enqueue(any_database, id, 10) is None
        await begin(any_database, id, 10)
        await any_database.batch_ends.finish("t", id, an_outcome(status, output=None, error=None), after(2))
    await enqueue(any_database, "batch_5", 10)
    await any_database.batch_ends.end_without_files("t", "batch_5", BatchStatus.CANCELLED, [], after(2))
    await enqueue(any_database, "batch_6", 10)
    await any_database.batch_ends.fail_validation("t", "batch_6", errors=[], total=10, at=after(2))
    assert (await any_database.quotas.used("t")).enqueued_lines == 0


async def test_used_returns_the_usage_of_one_tenant_by_quota(any_database: Database) -> None:
    assert await any_database.quotas.used("t") == QuotaUsage(0, 0, 0, 0, 0, 0, 0, 0)
    await any_database.files.insert(a_file("file-1", bytes=100))
    await any_database.files.insert(a_file("file-2", bytes=7, expires_at=LONG_AGO))
    await any_database.files.insert(a_file("file-3", tenant="u", bytes=7))
    await enqueue(any_database, "batch_1", 5, 50)
    await any_database.quotas.count_request("t")
    of_a_batch = an_endpoint("webhook_2", batch_id="batch_1")
    await create(any_database, an_endpoint(), of_a_batch, an_endpoint("webhook_3", tenant="u"))
    await publish_usage(any_database.quotas, "w", DailyUsage("t", "", 9, 7))
    assert await any_database.quotas.used("t") == QuotaUsage(1, 100, 5, 50, 1, 9, 7, 1)


async def test_a_pending_upload_counts_as_it_was_announced_or_with_its_larger_parts(
    any_database: Database,
) -> None:
    upload = UploadRow(
        tenant="t",
        id="upload_1",
        purpose="batch",
        filename="a",
        mime_type="b",
        bytes=500,
        status="pending",
        created_at=LONG_AGO,
        expires_at=after(10**9),
    )
    await any_database.uploads.insert(upload)
    await any_database.uploads.insert(upload.model_copy(update={"id": "upload_2", "expires_at": LONG_AGO}))
    assert await any_database.quotas.stored("t") == 500
    part = PartRow(
        id="part_1", tenant="t", upload_id="upload_1", bytes=501, storage_key="k", created_at=START
    )
    await any_database.uploads.add_part(part, at=START, max_bytes=1000, max_parts=2)
    assert await any_database.quotas.stored("t") == 501
    await any_database.uploads.cancel("t", "upload_1", START)
    assert await any_database.quotas.stored("t") == 0


async def test_bytes_written_by_ingestion_count_as_stored_until_they_are_deleted_or_the_batch_ends(
    any_database: Database,
) -> None:
    batches, quotas = any_database.batches, any_database.quotas
    await batches.upsert(an_order("batch_1"))
    for _ in range(2):  # a second run changes nothing
        await batches.add_attempt("t", "batch_1", "first", 100)
        await batches.add_attempt("t", "batch_1", "second", 10)
    await batches.add_attempt("t", "batch_2", "unknown", 1)
    assert await quotas.stored("t") == 110
    assert await quotas.stored("u") == 0
    assert not await admit_bytes(any_database, "file-new", 1, 110)
    assert await admit_bytes(any_database, "file-new", 1, 111)
    await batches.remove_attempt("t", "batch_1", "second")
    await batches.remove_attempt("t", "batch_1", "second")
    assert await quotas.stored("t") == 100
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(2))
    assert await quotas.stored("t") == 0
    await batches.add_attempt("t", "batch_1", "late", 100)
    assert await quotas.stored("t") == 0
    await batches.upsert(an_order("batch_3"))
    await batches.add_attempt("t", "batch_3", "of a killed worker", 100)
    await any_database.batch_ends.fail_validation("t", "batch_3", errors=[], total=1, at=after(2))
    assert await quotas.stored("t") == 0
