"""Runs of retention: kinds in order, turns, what fails, what is carried over continue-as-new."""

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from batchwright.contracts.errors import Failure
from batchwright.contracts.retention import DUE, Gone, Kind, RetentionOrder, RetentionResult
from tests.workflows.house import House
from tests.workflows.steps import FOREIGN

pytestmark = pytest.mark.integration


async def retained(house: House, order: RetentionOrder) -> RetentionResult:
    async with house.workers():
        return await (await house.start_retention(order)).result()


async def test_each_kind_has_its_turn_in_order(house: House) -> None:
    result = await retained(house, RetentionOrder())
    assert [request.kind for request in house.retention.requests] == DUE
    assert result.gone == [Gone(kind=kind, count=1, bytes=1) for kind in DUE]


async def test_a_kind_has_turns_until_nothing_is_left_and_knows_what_it_did(house: House) -> None:
    house.retention.turns[Kind.FILES] = 3
    result = await retained(house, RetentionOrder(left=[Kind.FILES]))
    assert result.gone == [Gone(kind=Kind.FILES, count=3, bytes=3)]
    assert [request.place.id for request in house.retention.requests] == ["", "2", "3"]
    assert [request.so_far.count for request in house.retention.requests] == [0, 1, 2]
    assert len({request.now for request in house.retention.requests}) == 1


async def test_a_kind_that_fails_keeps_no_other_from_its_turn_and_the_run_fails(house: House) -> None:
    house.retention.failing[Kind.FILES] = FOREIGN
    with pytest.raises(WorkflowFailureError) as caught:
        await retained(house, RetentionOrder())
    assert [request.kind for request in house.retention.requests] == DUE
    error = caught.value.cause
    assert isinstance(error, ApplicationError)
    assert (error.type, error.message) == (
        Failure.RETENTION_FAILED,
        "Retention failed (files 1): files: Whose is it?",
    )


async def test_a_long_run_continues_as_new_where_it_was(house: House) -> None:
    house.retention.turns = {Kind.UPLOADS: 4}
    result = await retained(house, RetentionOrder(turns=2))
    counts = {gone.kind: gone.count for gone in result.gone}
    assert counts == {**dict.fromkeys(DUE, 1), Kind.UPLOADS: 4}
    assert [request.place.id for request in house.retention.requests][:5] == ["", "", "2", "3", "4"]
    assert len({request.now for request in house.retention.requests}) == 1


async def test_a_dry_run_stays_one(house: House) -> None:
    result = await retained(house, RetentionOrder(dry_run=True, turns=1))
    assert result.dry_run
    assert all(request.dry_run for request in house.retention.requests)


async def test_a_cancelled_run_begins_nothing_more(house: House) -> None:
    house.retention.released.clear()
    async with house.workers():
        run = await house.start_retention(RetentionOrder())
        await house.retention.started.wait()
        await run.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await run.result()
    assert isinstance(caught.value.cause, CancelledError)
    assert [request.kind for request in house.retention.requests] == [Kind.FILES]
