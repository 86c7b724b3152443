"""The audit log: its entries, outcomes and filters. Only retention deletes entries."""

import asyncio
from datetime import datetime

import pytest
from pydantic import JsonValue

from batchwright.contracts.api_objects.audit_log import AuditAction, AuditOutcome, AuditTargetType
from batchwright.database.database import Database
from batchwright.database.driver import DatabaseConnection, ServerError, connect
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.operations.audit_log import (
    UNFINISHED,
    AuditActor,
    AuditEntry,
    AuditFilters,
    AuditLogExtent,
    AuditResult,
    AuditTarget,
    RecordedAction,
)
from batchwright.rules.ids import audit_entry_position, is_audit_entry_id
from tests.integration.database.rows import after

ACTOR = AuditActor(
    source="api", tenant="ops", key_id="key_1", user="ada", address="10.0.0.1", request_id="req_1"
)
INSERT = """
INSERT INTO audit_log (created_at, source, actor_tenant, actor_key, actor_user, address, request_id, action,
                       target_type, target_id, target_tenant)
VALUES ('2026-11-21 04:00:01+00', 'cli', '', '', 'root', 'host', '', 'quota.set', 'quota', 'late', 'red')
"""
OK = AuditResult(outcome=AuditOutcome.OK, after={"live_batches": 3})


def entry(
    at: datetime,
    actor: AuditActor = ACTOR,
    action: AuditAction = AuditAction.QUOTA_SET,
    tenant: str = "red",
) -> AuditEntry:
    target = AuditTarget(type=AuditTargetType.QUOTA, id=f"quota-of-{tenant}", tenant=tenant)
    before: JsonValue = {"live_batches": 2, "models": ["a\u0000"]}
    return AuditEntry(created_at=at, actor=actor, action=action, target=target, before=before)


async def listed(database: Database, filters: AuditFilters) -> list[RecordedAction]:
    """Return the actions that match the filters, oldest first.

    Check that a list with the newest first has the same actions.
    """
    actions, more = await database.audit_log.page(filters, limit=10, ascending=True)
    newest_first, more_before = await database.audit_log.page(filters, limit=10, ascending=False)
    assert newest_first == actions[::-1]
    assert (more, more_before) == (False, False)
    return actions


async def test_an_action_has_its_first_outcome_and_is_unknown_before(any_database: Database) -> None:
    log, action = any_database.audit_log, entry(after(1))
    id = await log.begin(action)
    assert is_audit_entry_id(id)
    assert await listed(any_database, AuditFilters()) == [RecordedAction(id, action, UNFINISHED)]
    await log.finish(id, OK)
    await log.finish(id, AuditResult(outcome=AuditOutcome.FAILED, code="late"))
    assert await listed(any_database, AuditFilters()) == [RecordedAction(id, action, OK)]


async def test_actions_are_selected_by_every_filter(any_database: Database) -> None:
    log = any_database.audit_log
    command = AuditActor(source="cli", user="root", address="host")
    first, second = entry(after(1)), entry(after(2), command, AuditAction.QUOTA_RESET, "blue")
    id = await log.begin(first)
    await log.begin(second)
    await log.finish(id, OK)
    filters = [
        (AuditFilters(action=AuditAction.QUOTA_SET), first),
        (AuditFilters(actor="ops"), first),
        (AuditFilters(actor="key_1"), first),
        (AuditFilters(actor="root"), second),
        (AuditFilters(target="quota-of-blue"), second),
        (AuditFilters(tenant="red"), first),
        (AuditFilters(outcome=AuditOutcome.OK), first),
        (AuditFilters(outcome=AuditOutcome.UNKNOWN), second),
        (AuditFilters(created_after=after(2)), second),
        (AuditFilters(created_before=after(2)), first),
    ]
    for selection, found in filters:
        assert [action.entry for action in await listed(any_database, selection)] == [found], selection
    assert await listed(any_database, AuditFilters(tenant="green")) == []


async def test_pages_continue_after_an_entry_in_both_directions(any_database: Database) -> None:
    log = any_database.audit_log
    # Processes may have different clocks: the order is the one in which the entries were recorded.
    actions = [entry(after(seconds)) for seconds in (5, 5, 3, 4)]
    ids = [await log.begin(action) for action in actions]
    assert [audit_entry_position(id) for id in ids] == [1, 2, 3, 4]
    first, more = await log.page(AuditFilters(), limit=3, ascending=True)
    rest, done = await log.page(AuditFilters(), limit=3, ascending=True, above=first[-1].id)
    assert [action.entry for action in (*first, *rest)] == actions
    assert (more, done) == (True, False)
    first, more = await log.page(AuditFilters(), limit=3, ascending=False)
    rest, done = await log.page(AuditFilters(), limit=3, ascending=False, below=first[-1].id)
    assert [action.entry for action in (*first, *rest)] == actions[::-1]
    assert (more, done) == (True, False)
    for ascending, found in ((True, ids[1:3]), (False, ids[2:0:-1])):
        between, _ = await log.page(AuditFilters(), limit=3, ascending=ascending, above=ids[0], below=ids[3])
        assert [action.id for action in between] == found


async def test_retention_deletes_old_actions_with_their_outcomes_the_oldest_first(
    any_database: Database,
) -> None:
    log, actions = any_database.audit_log, [entry(after(number)) for number in (1, 0, 2)]
    for action in actions:
        await log.finish(await log.begin(action), OK)
    assert await log.count_old(after(1)) == 2
    for removed, left in ((1, [actions[0], actions[2]]), (1, actions[2:]), (0, actions[2:])):
        assert await log.remove_old(after(1), 1) == removed
        assert [action.entry for action in await listed(any_database, AuditFilters())] == left


@pytest.mark.integration
async def test_retention_skips_actions_that_another_run_is_deleting(
    database: Database, connection: DatabaseConnection
) -> None:
    actions = [entry(after(number)) for number in range(2)]
    first, _ = [await database.audit_log.begin(action) for action in actions]
    async with connection.transaction():
        await connection.execute("SELECT FROM audit_log WHERE id = $1 FOR UPDATE", first)
        assert await database.audit_log.remove_old(after(1), 10) == 1
    assert [action.entry for action in await listed(database, AuditFilters())] == actions[:1]


async def test_the_extent_tells_what_is_deleted_and_what_may_be_running(any_database: Database) -> None:
    log = any_database.audit_log
    empty = await log.extent(after(0))
    assert (empty.latest, empty.oldest, empty.deleted_after(0)) == (0, None, 0)
    ids = [await log.begin(entry(after(number))) for number in range(4)]
    for id in ids[:2]:
        await log.finish(id, OK)
    assert await log.extent(after(0)) == AuditLogExtent(latest=4, oldest=1, ended_below=ids[2])
    # The third began too long ago to be running.
    assert (await log.extent(after(2))).ended_below == ids[3]
    end = (await log.extent(after(3))).ended_below
    assert ids[3] < end < await log.begin(entry(after(4)))
    await log.remove_old(after(2), 10)
    extent = await log.extent(after(4))
    assert (extent.latest, extent.oldest) == (5, 4)
    assert [extent.deleted_after(position) for position in range(6)] == [3, 2, 1, 0, 0, 0]
    await log.remove_old(after(9), 10)
    extent = await log.extent(after(4))
    assert (extent.latest, extent.oldest, extent.deleted_after(3)) == (5, None, 2)


async def test_a_repair_may_be_running_for_a_day(any_database: Database) -> None:
    log = any_database.audit_log
    repair = entry(after(0)).model_copy(update={"action": AuditAction.CONSISTENCY_REPAIR})
    ids = [await log.begin(action) for action in (repair, entry(after(0)))]
    assert (await log.extent(after(86_399))).ended_below == ids[0]
    assert (await log.extent(after(86_400))).ended_below > ids[1]


async def test_a_position_has_one_entry(any_database: Database) -> None:
    log = any_database.audit_log
    ids = [await log.begin(entry(after(number))) for number in range(2)]
    assert [await log.id_at(position) for position in (1, 2, 3)] == [*ids, None]
    await log.remove_old(after(0), 10)
    assert await log.id_at(1) is None


@pytest.mark.integration
async def test_an_action_does_not_wait_forever_for_one_that_is_never_committed(
    database: Database, connection: DatabaseConnection
) -> None:
    """If actions waited, they would use all connections to the database, and requests that record no action
    would fail.
    """
    async with connection.transaction():
        await connection.execute(INSERT)
        with pytest.raises(DatabaseUnavailable, match="lock timeout"):
            await database.audit_log.begin(entry(after(2)))
    await database.audit_log.begin(entry(after(3)))


@pytest.mark.integration
async def test_an_entry_that_is_committed_late_is_behind_no_entry_that_was_visible_before(
    database: Database, connection: DatabaseConnection
) -> None:
    log = database.audit_log
    async with connection.transaction():
        await connection.execute(INSERT)
        beginning = asyncio.create_task(log.begin(entry(after(2))))
        # It waits for the transaction, or else is done at once.
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        while not beginning.done() and not await connection.fetch(waiting):
            pass
        exported, _ = await log.page(AuditFilters(), limit=10, ascending=True)
    await beginning
    cursor = exported[-1].id if exported else None
    rest, _ = await log.page(AuditFilters(), limit=10, ascending=True, above=cursor)
    assert [action.entry.target.id for action in (*exported, *rest)] == ["late", "quota-of-red"]


@pytest.mark.integration
async def test_an_entry_that_is_rolled_back_leaves_no_gap(
    database: Database, connection: DatabaseConnection
) -> None:
    async def fail() -> None:
        async with connection.transaction():
            await connection.execute(INSERT)
            await connection.execute("SELECT 1 / 0")

    with pytest.raises(ServerError):
        await fail()
    assert audit_entry_position(await database.audit_log.begin(entry(after(2)))) == 1


@pytest.mark.integration
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_log SET actor_user = 'nobody'",
        "UPDATE audit_log_outcomes SET outcome = 'failed'",
        "DELETE FROM audit_log",
        "DELETE FROM audit_log_outcomes",
        "TRUNCATE audit_log CASCADE",
        "TRUNCATE audit_log_outcomes",
    ],
)
async def test_the_owner_of_the_tables_cannot_change_or_delete_an_entry(
    statement: str, database: Database, database_url: str
) -> None:
    action = entry(after(1))
    id = await database.audit_log.begin(action)
    await database.audit_log.finish(id, OK)
    connection = await connect(database_url)
    with pytest.raises(ServerError, match="append-only"):
        await connection.execute(statement)
    await connection.close()
    assert await listed(database, AuditFilters()) == [RecordedAction(id, action, OK)]
