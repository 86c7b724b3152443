"""What every database promises of quotas; `any_database` runs it on each."""

import asyncio
from datetime import UTC, datetime, timedelta

from batchwright.contracts.openai import BatchStatus
from batchwright.database.base import DatabaseLike
from batchwright.database.quotas_base import KeyBudget, OwnQuotas, SharedBudget, Spent, Used
from batchwright.database.tenant_rows import KeyRow, OrganizationRow
from batchwright.database.upload_rows import UploadRow
from batchwright.rules.api_keys import Kept, Scope
from batchwright.rules.quotas import Enqueued, Excess, Limits, Quota
from tests.fakes.spent import tell_spent, this_day
from tests.integration.rows import LONG_AGO, START, a_file, after, an_order, an_outcome, told

TIGHT = Limits(enqueued_lines=10, enqueued_tokens=1000)


async def enqueue(
    database: DatabaseLike, id: str, lines: int, tokens: int = 0, tenant: str = "t"
) -> Excess | None:
    await database.batches.upsert(an_order(id, tenant))
    return await database.quotas.reserve(tenant, id, Enqueued(lines, tokens), TIGHT)


async def begin(database: DatabaseLike, id: str, lines: int) -> None:
    assert await database.batches.begin("t", id, total=lines, models=[], at=after(1))


async def test_quotas_of_its_own_are_set_one_by_one_and_cleared(any_database: DatabaseLike) -> None:
    quotas = any_database.quotas
    assert await quotas.get("t") == OwnQuotas()
    assert await quotas.change("t", {"live_batches": 3}, START) == OwnQuotas(live_batches=3)
    limited = OwnQuotas(enqueued_lines=0, tokens_per_day=9)
    both = OwnQuotas(live_batches=3, models=frozenset({"a", "b"}))
    assert await quotas.change("t", {"models": frozenset({"b", "a"})}, after(1)) == both
    assert await quotas.change("u", {"enqueued_lines": 0, "tokens_per_day": 9}, START) == limited
    assert await quotas.get("t") == both
    assert [(row.tenant, row.own, row.changed_at) for row in await quotas.all()] == [
        ("t", both, after(1)),
        ("u", limited, START),
    ]
    assert (await quotas.change("t", {"models": None}, after(2))).models is None
    await quotas.clear("t")
    await quotas.clear("t")
    assert [row.tenant for row in await quotas.all()] == ["u"]


async def test_what_workers_have_spent_is_added_up_and_told_twice_it_counts_once(
    any_database: DatabaseLike,
) -> None:
    quotas, today = any_database.quotas, this_day()
    yesterday = today - timedelta(days=1)
    for _ in range(2):
        of_a = (Spent("t", "", 10), Spent("t", "key_1", 5), Spent("u", "", 7))
        await tell_spent(quotas, "a", *of_a, today=today)
    await tell_spent(quotas, "a", Spent("t", "", 9), today=today)  # what was overtaken
    await tell_spent(quotas, "a", today=today)
    await tell_spent(quotas, "b", Spent("t", "key_1", 100), today=today)
    await quotas.tell_spent("a", yesterday, [Spent("t", "", 1000)])
    assert sorted(await quotas.spent_by_others("b", today)) == [
        Spent("t", "", 10),
        Spent("t", "key_1", 5),
        Spent("u", "", 7),
    ]
    assert await quotas.spent_by_others("a", today) == [Spent("t", "key_1", 100)]
    assert sum(spent.tokens for spent in await quotas.spent_by_others("", today)) == 122
    assert [(await quotas.used(tenant)).tokens_per_day for tenant in ("t", "u", "v")] == [115, 7, 0]
    await quotas.forget_spent(today)
    assert await quotas.spent_by_others("", yesterday) == []
    assert (await quotas.used("t")).tokens_per_day == 115


async def test_a_key_has_a_budget_of_its_own_until_it_is_taken_back(any_database: DatabaseLike) -> None:
    await any_database.tenants.create("t", START)
    row = KeyRow(id="key_1", tenant="t", prefix="abc", scopes=[Scope.READ], created_at=START)
    await any_database.api_keys.insert(row, Kept(b"salt", b"hash"))
    quotas, keys = any_database.quotas, any_database.api_keys
    assert await quotas.key_budget("t", "key_1") == KeyBudget(None, 0)
    assert (await quotas.key_budgets(), await keys.limit("key_2", 1)) == ({}, None)
    assert await keys.limit("abc", 50) == row.model_copy(update={"tokens_per_day": 50})
    await tell_spent(quotas, "a", Spent("t", "key_1", 20), Spent("t", "", 1))
    assert (await quotas.key_budgets(), await quotas.key_budget("t", "key_1")) == (
        {"key_1": 50},
        KeyBudget(50, 20),
    )
    assert await quotas.key_budget("u", "key_1") is None
    assert [one.tokens_per_day for one in await keys.all("t")] == [50]
    await keys.limit("key_1", None)
    assert await quotas.key_budgets() == {}


async def test_tenants_of_an_organization_share_its_budget(any_database: DatabaseLike) -> None:
    organizations, quotas = any_database.organizations, any_database.quotas
    assert await organizations.add("group", "t") is None  # there is none
    assert await organizations.create("group", 100, START)
    assert not await organizations.create("group", 5, after(1))
    assert await organizations.create("another", None, after(1))
    assert [await organizations.add("group", tenant) for tenant in ("u", "t", "t")] == ["group"] * 3
    assert await organizations.add("another", "t") == "group"
    group = OrganizationRow(name="group", created_at=START, tokens_per_day=100, tenants=["t", "u"])
    empty = OrganizationRow(name="another", created_at=after(1), tenants=[])
    assert await quotas.organizations() == [empty, group]
    await tell_spent(quotas, "a", Spent("t", "", 10), Spent("t", "key", 5), Spent("v", "", 7))
    await tell_spent(quotas, "b", Spent("u", "", 20))
    await quotas.tell_spent("b", this_day() - timedelta(days=1), [Spent("u", "", 1000)])
    for tenant in ("t", "u"):
        assert await quotas.organization_of(tenant) == SharedBudget("group", 100, 35)
    assert await quotas.organization_of("v") is None


async def test_an_organization_is_changed_and_goes_and_its_tenants_stay(any_database: DatabaseLike) -> None:
    organizations, quotas = any_database.organizations, any_database.quotas
    await organizations.create("group", None, START)
    await quotas.change("t", {"tokens_per_day": 9}, START)
    for tenant in ("t", "u"):
        await organizations.add("group", tenant)
    assert await organizations.limit("group", 50)
    assert not await organizations.limit("none", 50)
    assert await quotas.organization_of("t") == SharedBudget("group", 50, 0)
    assert await organizations.remove("group", "u")
    assert not await organizations.remove("group", "u")
    assert not await organizations.remove("none", "t")
    [row] = await quotas.organizations()
    assert (row.tokens_per_day, row.tenants) == (50, ["t"])
    assert await organizations.limit("group", None)
    assert await quotas.organization_of("t") == SharedBudget("group", None, 0)
    await quotas.clear("t")  # its own quotas go, where it belongs to stays
    assert await quotas.organization_of("t") is not None
    assert await organizations.delete("group")
    assert not await organizations.delete("group")
    assert (await quotas.organizations(), await quotas.organization_of("t")) == ([], None)


async def test_keys_that_hold_no_more_are_told_of_as_far_back_as_asked(any_database: DatabaseLike) -> None:
    now = datetime.now(UTC)
    await any_database.tenants.create("t", START)
    row = KeyRow(id="key", tenant="t", prefix="key", scopes=[Scope.READ], created_at=START)
    ends = {"holds": None, "runs": now + timedelta(days=1), "expired": now, "long_ago": LONG_AGO}
    for id, expires_at in {**ends, "revoked": None, "revoked_long_ago": None}.items():
        key = row.model_copy(update={"id": id, "prefix": id, "expires_at": expires_at})
        await any_database.api_keys.insert(key, Kept(b"salt", b"hash"))
    await any_database.api_keys.revoke("revoked", now)
    await any_database.api_keys.revoke("revoked_long_ago", LONG_AGO)
    since = now - timedelta(days=1)
    assert await any_database.quotas.withdrawn_keys(since) == {"expired", "revoked"}


async def test_no_models_at_all_is_not_the_same_as_every_model(any_database: DatabaseLike) -> None:
    own = await any_database.quotas.change("t", {"models": frozenset()}, START)
    assert await any_database.quotas.get("t") == own
    assert not own.may_use("a")
    assert OwnQuotas().may_use("a")


async def test_a_batch_that_does_not_fit_beside_the_others_is_told_so(any_database: DatabaseLike) -> None:
    assert await enqueue(any_database, "batch_1", 7) is None
    assert await enqueue(any_database, "batch_2", 4) == Excess(Quota.ENQUEUED_LINES, 10, 7, 4)
    assert await enqueue(any_database, "batch_3", 3, 1001) == Excess(Quota.ENQUEUED_TOKENS, 1000, 0, 1001)
    assert await enqueue(any_database, "batch_4", 3, 1000) is None
    assert await enqueue(any_database, "batch_5", 10, tenant="another") is None


async def test_a_batch_that_is_enqueued_again_is_not_in_its_own_way(any_database: DatabaseLike) -> None:
    assert await enqueue(any_database, "batch_1", 10) is None
    assert await enqueue(any_database, "batch_1", 9) is None
    assert (await any_database.quotas.used("t")).enqueued_lines == 9
    await begin(any_database, "batch_1", 9)
    assert await enqueue(any_database, "batch_1", 11) is None
    assert (await any_database.quotas.used("t")).enqueued_lines == 9


async def test_of_reservations_at_once_no_more_fit_than_there_is_room_for(any_database: DatabaseLike) -> None:
    found = await asyncio.gather(*(enqueue(any_database, f"batch_{n}", 4) for n in range(5)))
    assert sum(excess is None for excess in found) == 2
    assert (await any_database.quotas.used("t")).enqueued_lines == 8


async def test_what_settles_leaves_room_at_once_and_tokens_in_proportion(any_database: DatabaseLike) -> None:
    await enqueue(any_database, "batch_1", 10, 999)
    await begin(any_database, "batch_1", 10)
    await any_database.progress.record([told(0, completed=3, failed=1), told(1, completed=2)])
    used = await any_database.quotas.used("t")
    assert (used.enqueued_lines, used.enqueued_tokens) == (4, 400)
    assert await enqueue(any_database, "batch_2", 6, 600) is None


async def test_an_attempt_that_lost_results_takes_room_again(any_database: DatabaseLike) -> None:
    await enqueue(any_database, "batch_1", 10)
    await begin(any_database, "batch_1", 10)
    await any_database.progress.record([told(0, completed=8)])
    await any_database.progress.record([told(0, attempt=2, completed=5)])
    assert (await any_database.quotas.used("t")).enqueued_lines == 5


async def test_every_end_gives_back_all_that_is_left(any_database: DatabaseLike) -> None:
    ends = (BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED, BatchStatus.FAILED)
    for status in ends:
        id = f"batch_{status}"
        assert await enqueue(any_database, id, 10) is None
        await begin(any_database, id, 10)
        await any_database.batches.finish("t", id, an_outcome(status, output=None, error=None), after(2))
    await enqueue(any_database, "batch_5", 10)
    await any_database.batches.end("t", "batch_5", BatchStatus.CANCELLED, [], after(2))
    await enqueue(any_database, "batch_6", 10)
    await any_database.batches.fail_validation("t", "batch_6", errors=[], total=10, at=after(2))
    assert (await any_database.quotas.used("t")).enqueued_lines == 0


async def test_used_tells_each_quota_of_the_tenant_alone(any_database: DatabaseLike) -> None:
    assert await any_database.quotas.used("t") == Used(0, 0, 0, 0, 0, 0)
    await any_database.files.insert(a_file("file-1", bytes=100))
    await any_database.files.insert(a_file("file-2", bytes=7, expires_at=LONG_AGO))
    await any_database.files.insert(a_file("file-3", tenant="u", bytes=7))
    await enqueue(any_database, "batch_1", 5, 50)
    await any_database.quotas.count_request("t")
    assert await any_database.quotas.used("t") == Used(1, 100, 5, 50, 1, 0)


async def test_a_pending_upload_counts_as_it_was_announced(any_database: DatabaseLike) -> None:
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
    await any_database.uploads.cancel("t", "upload_1", START)
    assert await any_database.quotas.stored("t") == 0


async def test_requests_of_a_minute_are_counted_by_tenant(any_database: DatabaseLike) -> None:
    counted = await asyncio.gather(*(any_database.quotas.count_request("t") for _ in range(5)))
    assert sorted(one.requests for one in counted) == [1, 2, 3, 4, 5]
    assert all(0 < one.seconds_left <= 60 for one in counted)
    assert (await any_database.quotas.count_request("u")).requests == 1


async def test_of_batches_admitted_at_once_no_more_come_in_than_may(any_database: DatabaseLike) -> None:
    await any_database.batches.upsert(an_order("batch_0", "t"))
    quotas = any_database.quotas
    let_in = await asyncio.gather(*(quotas.admit_batch("t", f"batch_{n}", 3) for n in range(1, 9)))
    assert sum(let_in) == 2
    assert await quotas.admit_batch("another", "batch_1", 3)


async def test_an_admitted_batch_counts_once_by_its_row_and_not_when_it_is_withdrawn(
    any_database: DatabaseLike,
) -> None:
    quotas = any_database.quotas
    assert await quotas.admit_batch("t", "batch_1", 2)
    assert await quotas.admit_batch("t", "batch_1", 2)
    await any_database.batches.upsert(an_order("batch_1", "t"))
    assert await quotas.admit_batch("t", "batch_2", 2)
    assert not await quotas.admit_batch("t", "batch_3", 2)
    await quotas.withdraw("t", "batch_2")
    await quotas.withdraw("t", "batch_2")
    assert await quotas.admit_batch("t", "batch_3", 2)
    await any_database.batches.end("t", "batch_1", BatchStatus.CANCELLED, [], after(1))
    assert await quotas.admit_batch("t", "batch_4", 2)


async def test_of_bytes_admitted_at_once_no_more_come_in_than_there_is_room_for(
    any_database: DatabaseLike,
) -> None:
    await any_database.files.insert(a_file("file-0", bytes=30))
    quotas = any_database.quotas
    let_in = await asyncio.gather(*(quotas.admit_bytes("t", f"file-{n}", 30, 100) for n in range(1, 9)))
    assert sum(let_in) == 2
    assert await quotas.admit_bytes("t", "file-9", 10, 100)
    assert await quotas.admit_bytes("another", "file-1", 100, 100)


async def test_admitted_bytes_count_once_by_their_row_and_not_when_they_are_withdrawn(
    any_database: DatabaseLike,
) -> None:
    quotas = any_database.quotas
    assert await quotas.admit_bytes("t", "file-1", 60, 100)
    await any_database.files.insert(a_file("file-1", bytes=60))
    assert await quotas.admit_bytes("t", "file-1", 60, 100)
    assert not await quotas.admit_bytes("t", "file-2", 41, 100)
    assert await quotas.admit_bytes("t", "file-2", 40, 100)
    await quotas.withdraw("t", "file-2")
    assert await quotas.admit_bytes("t", "file-3", 40, 100)
    assert await quotas.stored("t") == 60
