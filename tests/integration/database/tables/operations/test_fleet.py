"""Queries that count live batches and their lines.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

from datetime import timedelta

from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.terms import BatchStatus, HoldKind
from batchwright.database.database import Database
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource
from batchwright.database.tables.operations.fleet import LiveBatch, ModelBacklog, ModelDeadline
from tests.integration.database.rows import (
    START,
    a_running_batch,
    after,
    an_order,
    an_outcome,
    rows_of_others,
    slice_progress,
)


async def test_a_batch_before_ingestion_has_no_lines_yet(any_database: Database) -> None:
    order = an_order()
    await any_database.batches.upsert(order)
    assert await any_database.fleet.live() == [
        LiveBatch(
            tenant="t",
            id="batch_1",
            status=BatchStatus.VALIDATING,
            created_at=START,
            deadline=order.deadline,
            entered_at=START,
            lines=0,
            settled=0,
            in_progress_at=None,
        )
    ]
    assert await any_database.fleet.lines_left() == {}


async def test_lines_settled_by_ingestion_are_not_work(any_database: Database) -> None:
    await a_running_batch(any_database)
    await any_database.progress.record([slice_progress(0, completed=1, failed=1)])
    (batch,) = await any_database.fleet.live()
    assert (batch.lines, batch.settled) == (9, 2)
    assert (batch.status, batch.entered_at, batch.in_progress_at) == (
        BatchStatus.IN_PROGRESS,
        after(10),
        after(10),
    )
    assert await any_database.fleet.lines_left() == {"a": 1, "b": 6}


async def test_a_model_of_which_only_duplicates_have_no_results_has_no_lines_left(
    any_database: Database,
) -> None:
    await any_database.batches.upsert(an_order())
    models = [ModelCounts(model="a", lines=3, duplicates=1), ModelCounts(model="b", lines=1)]
    await any_database.batches.start("t", "batch_1", total=4, models=models, at=after(1))
    await any_database.progress.record([slice_progress(0, completed=1, failed=1)])
    assert await any_database.fleet.lines_left() == {"b": 1}
    assert await any_database.fleet.awaited_models(after(20)) == {"b": {"t": 1}, "a": {}}


async def test_an_unserved_model_has_no_lines_left(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    models = [ModelCounts(model="a", lines=3), ModelCounts(model="nowhere", lines=1, failed=1)]
    await any_database.batches.start("t", "batch_1", total=4, models=models, at=after(1), unserved=1)
    assert await any_database.fleet.lines_left() == {"a": 3}


async def test_models_are_required_while_a_dispatching_batch_has_lines_for_them(
    any_database: Database,
) -> None:
    await any_database.batches.upsert(an_order())
    assert await any_database.fleet.awaited_models(after(20)) == {}
    models = [
        ModelCounts(model="a", lines=3, duplicates=1, completed=1),
        ModelCounts(model="done", lines=3, duplicates=1, completed=1, failed=1),
        ModelCounts(model="nowhere", lines=1, failed=1),
    ]
    await any_database.batches.start("t", "batch_1", total=7, models=models, at=after(1), unserved=1)
    await any_database.batches.upsert(an_order("batch_2", tenant="u"))
    more = [ModelCounts(model="a", lines=5), ModelCounts(model="b", lines=1)]
    await any_database.batches.start("u", "batch_2", total=6, models=more, at=after(1))
    assert await any_database.fleet.awaited_models(after(20)) == {"a": {"t": 1, "u": 1}, "b": {"u": 1}}
    await any_database.batches.start_finalizing("u", "batch_2", after(20))
    assert await any_database.fleet.awaited_models(after(20)) == {"a": {"t": 1}}


async def test_required_models_are_ordered_so_that_each_tenant_gets_its_share(
    any_database: Database,
) -> None:
    database = any_database
    greedy = [ModelCounts(model=f"m{number}", lines=1) for number in range(4)]
    others = [("t", "m4"), ("u", "z"), ("t", "m1")]
    for number, (tenant, models) in enumerate(
        [("t", greedy), *((tenant, [ModelCounts(model=name, lines=1)]) for tenant, name in others)]
    ):
        name = f"batch_{number}"
        await database.batches.upsert(an_order(name, tenant=tenant, created_at=after(number)))
        await database.batches.start(tenant, name, total=len(models), models=models, at=after(number))
    assert [*await database.fleet.awaited_models(after(20))] == ["m0", "z", "m1", "m2", "m3", "m4"]
    await database.progress.record([slice_progress(0, batch_id="batch_0", model="m0", completed=1)])
    awaited = await database.fleet.awaited_models(after(20))
    assert [*awaited] == ["m1", "z", "m2", "m3", "m4", "m0"]
    assert (awaited["m1"], awaited["m0"]) == ({"t": 2}, {})  # all lines of the last one have results


async def test_a_model_of_several_tenants_is_polled_at_the_best_of_its_places(any_database: Database) -> None:
    wanted = ((0, "t", "a"), (2, "v", "e"), (3, "v", "d"), (4, "t", "b"), (5, "u", "b"), (6, "w", "a"))
    for second, tenant, model in wanted:
        id = f"batch_{second}"
        await any_database.batches.upsert(an_order(id, tenant, created_at=after(second)))
        models = [ModelCounts(model=model, lines=1)]
        await any_database.batches.start(tenant, id, total=1, models=models, at=after(second))
    assert [*await any_database.fleet.awaited_models(after(20))] == ["a", "e", "b", "d"]


async def test_a_batch_that_may_send_nothing_does_not_move_its_model_forward(any_database: Database) -> None:
    for second, (tenant, model) in enumerate([("u", "z"), ("t", "a"), ("t", "b"), ("t", "z")]):
        id = f"batch_{second}"
        await any_database.batches.upsert(an_order(id, tenant, created_at=after(second)))
        models = [ModelCounts(model=model, lines=1)]
        await any_database.batches.start(tenant, id, total=1, models=models, at=after(second))
    assert [*await any_database.fleet.awaited_models(after(20))] == ["z", "a", "b"]
    await any_database.holds.put(HoldKind.TENANT, "u", after(20))
    assert [*await any_database.fleet.awaited_models(after(20))] == ["a", "b", "z"]


async def test_a_batch_that_starts_later_is_as_old_as_its_start(any_database: Database) -> None:
    """Workers poll the models of older batches first. So they poll its model after that of a batch that was
    created later but began earlier.
    """
    await any_database.batches.upsert(an_order("batch_1", start_at=after(600)))
    await any_database.batches.upsert(an_order("batch_2", created_at=after(300)))
    for id, model in (("batch_1", "a"), ("batch_2", "b")):
        models = [ModelCounts(model=model, lines=1)]
        await any_database.batches.start("t", id, total=1, models=models, at=after(600))
    since = {"batch_1": after(600), "batch_2": after(300)}
    backlogs = await any_database.fleet.backlogs(after(700))
    assert {each.batch_id: each.created_at for each in backlogs} == since
    assert {each.lines_left for each in backlogs} == {1}  # no slice has reported anything
    work = await any_database.forecasts.work(after(700))
    assert {each.batch_id: each.created_at for each in work} == since
    assert [*await any_database.fleet.awaited_models(after(700))] == ["b", "a"]


async def test_batches_with_lines_left_are_counted_by_tenant(any_database: Database) -> None:
    for name, tenant in (("batch_1", "t"), ("batch_2", "t"), ("batch_3", "t"), ("batch_4", "u")):
        await any_database.batches.upsert(an_order(name, tenant=tenant))
        models = [ModelCounts(model="a", lines=2)]
        await any_database.batches.start(tenant, name, total=2, models=models, at=after(1))
    await any_database.progress.record([slice_progress(0, batch_id="batch_3", model="a", completed=2)])
    assert await any_database.fleet.awaited_models(after(20)) == {"a": {"t": 2, "u": 1}}


async def test_batches_that_may_send_nothing_now_are_not_counted_but_their_models_are_polled(
    any_database: Database,
) -> None:
    order = (await a_running_batch(any_database)).order
    pause = WaitingRow(
        tenant="t",
        batch_id="batch_1",
        source=WaitingSource.USER,
        reason="paused",
        since=after(11),
        until=order.deadline + timedelta(days=1),
    )
    sending = {"a": {"t": 1}, "b": {"t": 1}}
    fleet = any_database.fleet
    assert await fleet.awaited_models(after(20)) == sending
    await any_database.waiting.report(pause.model_copy(update={"source": WaitingSource.FLEET}))
    assert await fleet.awaited_models(after(20)) == sending
    await any_database.waiting.report(pause)
    assert await fleet.awaited_models(after(20)) == {"a": {}, "b": {}}
    assert all(backlog.is_paused for backlog in await fleet.backlogs(after(20)))
    await any_database.waiting.clear("t", "batch_1", "", WaitingSource.USER)
    assert await fleet.awaited_models(after(20)) == sending
    assert await fleet.awaited_models(order.deadline) == {"a": {}, "b": {}}


async def test_lines_left_add_up_over_batches_and_tenants(any_database: Database) -> None:
    await a_running_batch(any_database)
    await any_database.batches.upsert(an_order("batch_2", tenant="u"))
    models = [ModelCounts(model="a", lines=5)]
    await any_database.batches.start("u", "batch_2", total=5, models=models, at=after(1))
    await any_database.progress.record([slice_progress(0, completed=3)])
    assert await any_database.fleet.lines_left() == {"a": 5, "b": 6}
    assert sorted(batch.tenant for batch in await any_database.fleet.live()) == ["t", "u"]


async def test_numbers_of_a_batch_depend_on_no_row_of_another_batch(any_database: Database) -> None:
    fleet, own = any_database.fleet, ("t", "batch_1")
    await a_running_batch(any_database)
    await any_database.progress.record([slice_progress(0, completed=1)])
    [live], backlogs = await fleet.live(), await fleet.backlogs(after(20))
    awaited, due = await fleet.awaited_models(after(20)), await fleet.lines_due(after(20))
    await rows_of_others(any_database)
    assert [each for each in await fleet.live() if (each.tenant, each.id) == own] == [live]
    found = [each for each in await fleet.backlogs(after(20)) if (each.tenant, each.batch_id) == own]
    assert sorted(found, key=lambda each: each.model) == sorted(backlogs, key=lambda each: each.model)
    assert await fleet.awaited_models(after(20)) == awaited == {"a": {"t": 1}, "b": {"t": 1}}
    assert by_model_and_time(await fleet.lines_due(after(20))) == by_model_and_time(due)


async def test_live_batches_have_the_status_that_clients_see(any_database: Database) -> None:
    await a_running_batch(any_database, "batch_1")
    await a_running_batch(any_database, "batch_2")
    await any_database.batches.start_finalizing("t", "batch_1", after(20))
    await any_database.batches.request_cancel("t", "batch_2", after(30))
    found = {batch.id: (batch.status, batch.entered_at) for batch in await any_database.fleet.live()}
    assert found == {
        "batch_1": (BatchStatus.FINALIZING, after(20)),
        "batch_2": (BatchStatus.CANCELLING, after(30)),
    }


async def test_a_batch_that_has_ended_is_not_live(any_database: Database) -> None:
    await a_running_batch(any_database)
    await any_database.batch_ends.finish("t", "batch_1", an_outcome(), after(20))
    assert await any_database.fleet.live() == []
    assert await any_database.fleet.lines_left() == {}


async def test_lines_that_a_resumed_batch_took_over_are_no_backlog(any_database: Database) -> None:
    order = an_order()
    await any_database.batches.upsert(order)
    models = [
        ModelCounts(model="a", lines=9, duplicates=2, completed=3, failed=1),
        ModelCounts(model="done", lines=3, duplicates=1, completed=2),
    ]
    await any_database.batches.start("t", "batch_1", total=12, models=models, at=after(1), completed=5)
    await any_database.progress.record([slice_progress(0, completed=1)])
    backlog = ModelBacklog("t", "batch_1", "a", 2, order.deadline, order.priority, order.created_at)
    assert await any_database.fleet.backlogs(after(20)) == [backlog]


def by_model_and_time(due: list[ModelDeadline]) -> list[ModelDeadline]:
    return sorted(due, key=lambda each: (each.model, each.deadline))


async def test_lines_due_are_those_that_workers_have_left_by_model_and_deadline(
    any_database: Database,
) -> None:
    """Lines that ingestion settled are not due, and neither are duplicates of other lines."""
    await a_running_batch(any_database)
    await any_database.batches.upsert(an_order("batch_2", tenant="u", deadline=after(3600)))
    models = [
        ModelCounts(model="a", lines=9, duplicates=2, completed=1, failed=1),
        ModelCounts(model="done", lines=3, duplicates=1, completed=1, failed=1),
    ]
    await any_database.batches.start("u", "batch_2", total=12, models=models, at=after(1))
    await any_database.progress.record([slice_progress(0, completed=1, failed=1)])
    assert by_model_and_time(await any_database.fleet.lines_due(after(20))) == [
        ModelDeadline("a", after(3600), 5),
        ModelDeadline("a", after(86_400), 1),
        ModelDeadline("b", after(86_400), 6),
    ]
    await any_database.progress.record([slice_progress(1, completed=1)])
    assert by_model_and_time(await any_database.fleet.lines_due(after(20))) == [
        ModelDeadline("a", after(3600), 5),
        ModelDeadline("b", after(86_400), 6),
    ]


async def test_lines_of_batches_with_the_same_deadline_are_added_up(any_database: Database) -> None:
    await a_running_batch(any_database, "batch_1")
    await a_running_batch(any_database, "batch_2")
    assert by_model_and_time(await any_database.fleet.lines_due(after(20))) == [
        ModelDeadline("a", after(86_400), 6),
        ModelDeadline("b", after(86_400), 12),
    ]


async def test_lines_are_due_only_while_a_batch_sends_them(any_database: Database) -> None:
    """Batches before ingestion, finalizing, cancelled, or past their deadline have no due lines."""
    await any_database.batches.upsert(an_order("batch_new"))
    for name in ("batch_finalizing", "batch_cancelled"):
        await a_running_batch(any_database, name)
    await any_database.batches.start_finalizing("t", "batch_finalizing", after(11))
    await any_database.batches.request_cancel("t", "batch_cancelled", after(11))
    await any_database.batches.upsert(an_order("batch_late", deadline=after(20)))
    late = [ModelCounts(model="late", lines=1)]
    await any_database.batches.start("t", "batch_late", total=1, models=late, at=after(1))
    fleet = any_database.fleet
    assert await fleet.lines_due(after(19)) == [ModelDeadline("late", after(20), 1)]
    assert await fleet.lines_due(after(20)) == []
    assert [each.batch_id for each in await fleet.backlogs(after(20))] == ["batch_late"]
    # Models of the batch that is cancelled are polled, but it is not counted.
    assert await fleet.awaited_models(after(19)) == {"late": {"t": 1}, "a": {}, "b": {}}
    assert await fleet.lines_left() == {"a": 6, "b": 12, "late": 1}


async def test_lines_of_a_paused_batch_are_not_due_until_it_is_resumed(any_database: Database) -> None:
    row = await a_running_batch(any_database)
    waiting = WaitingRow(
        tenant="t",
        batch_id="batch_1",
        source=WaitingSource.FLEET,
        reason="behind other slices",
        since=after(11),
        until=row.order.deadline + timedelta(days=1),
    )
    await any_database.waiting.report(waiting)
    due = await any_database.fleet.lines_due(after(20))
    assert len(due) == 2
    await any_database.waiting.report(waiting.model_copy(update={"source": WaitingSource.USER}))
    assert await any_database.fleet.lines_due(after(20)) == []
    await any_database.waiting.clear("t", "batch_1", "", WaitingSource.USER)
    assert by_model_and_time(await any_database.fleet.lines_due(after(20))) == by_model_and_time(due)
