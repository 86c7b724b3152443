"""The audit log: its entries, outcomes and filters. Only retention deletes entries."""

from datetime import datetime

import pytest
from pydantic import JsonValue

from batchwright.contracts.audit_log import AuditAction, AuditOutcome, AuditTargetType
from batchwright.database.database import Database
from batchwright.database.driver import ServerError, connect
from batchwright.database.errors import UnknownCursor
from batchwright.database.tables.audit_log import (
    UNFINISHED,
    AuditActor,
    AuditEntry,
    AuditFilters,
    AuditResult,
    AuditTarget,
    RecordedAct,
)
from batchwright.rules.ids import new_audit_entry_id
from tests.integration.database.rows import after

ACTOR = AuditActor(
    source="api", tenant="ops", key_id="key_1", user="ada", address="10.0.0.1", request_id="req_1"
)
OK = AuditResult(outcome=AuditOutcome.OK, after={"live_batches": 3})


def entry(
    at: datetime,
    actor: AuditActor = ACTOR,
    action: AuditAction = AuditAction.QUOTA_SET,
    tenant: str = "red",
) -> AuditEntry:
    target = AuditTarget(type=AuditTargetType.QUOTA, id=f"quota-of-{tenant}", tenant=tenant)
    before: JsonValue = {"live_batches": 2, "models": ["a\u0000"]}
    return AuditEntry(
        id=new_audit_entry_id(), created_at=at, actor=actor, action=action, target=target, before=before
    )


async def listed(database: Database, filters: AuditFilters) -> list[RecordedAct]:
    acts, more = await database.audit_log.page(filters, limit=10, ascending=True, after=None)
    assert not more
    return acts


async def test_an_act_has_its_first_outcome_and_is_unknown_before(any_database: Database) -> None:
    log, act = any_database.audit_log, entry(after(1))
    for _ in range(2):
        await log.begin(act)
    assert await listed(any_database, AuditFilters()) == [RecordedAct(act, UNFINISHED)]
    await log.finish(act.id, OK)
    await log.finish(act.id, AuditResult(outcome=AuditOutcome.FAILED, code="late"))
    assert await listed(any_database, AuditFilters()) == [RecordedAct(act, OK)]


async def test_acts_are_selected_by_every_filter(any_database: Database) -> None:
    log = any_database.audit_log
    command = AuditActor(source="cli", user="root", address="host")
    first, second = entry(after(1)), entry(after(2), command, AuditAction.QUOTA_RESET, "blue")
    for act in (first, second):
        await log.begin(act)
    await log.finish(first.id, OK)
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
        assert [act.entry for act in await listed(any_database, selection)] == [found], selection
    assert await listed(any_database, AuditFilters(tenant="green")) == []


async def test_pages_continue_after_an_entry_in_both_directions(any_database: Database) -> None:
    log, acts = any_database.audit_log, [entry(after(number // 2)) for number in range(4)]
    for act in acts:
        await log.begin(act)
    expected = sorted(acts, key=lambda act: (act.created_at, act.id))
    for ascending, order in ((True, expected), (False, expected[::-1])):
        first, more = await log.page(AuditFilters(), limit=3, ascending=ascending, after=None)
        rest, done = await log.page(AuditFilters(), limit=3, ascending=ascending, after=first[-1].entry.id)
        assert [act.entry for act in (*first, *rest)] == order
        assert (more, done) == (True, False)
    with pytest.raises(UnknownCursor):
        await log.page(AuditFilters(), limit=3, ascending=True, after=new_audit_entry_id())


async def test_retention_deletes_old_acts_with_their_outcomes(any_database: Database) -> None:
    log, acts = any_database.audit_log, [entry(after(number)) for number in range(3)]
    for act in acts:
        await log.begin(act)
        await log.finish(act.id, OK)
    assert await log.count_old(after(1)) == 2
    assert [await log.remove_old(after(1), 1) for _ in range(3)] == [1, 1, 0]
    assert [act.entry for act in await listed(any_database, AuditFilters())] == acts[2:]


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
    act = entry(after(1))
    await database.audit_log.begin(act)
    await database.audit_log.finish(act.id, OK)
    connection = await connect(database_url)
    with pytest.raises(ServerError, match="append-only"):
        await connection.execute(statement)
    await connection.close()
    assert await listed(database, AuditFilters()) == [RecordedAct(act, OK)]
