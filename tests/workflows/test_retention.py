"""The retention workflow: the order in which kinds of data are deleted, repeated calls of its activity,
failures, and its state after continue-as-new.
"""

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.retention import (
    EXPIRED_KINDS,
    DeletionCount,
    RetentionKind,
    RetentionOrder,
    RetentionResult,
)
from tests.workflows.fixture import WorkflowFixture
from tests.workflows.stub_activities import FOREIGN

pytestmark = pytest.mark.integration


async def retained(fixture: WorkflowFixture, order: RetentionOrder) -> RetentionResult:
    async with fixture.workers():
        return await (await fixture.start_retention(order)).result()


async def test_each_kind_has_its_turn_in_order(fixture: WorkflowFixture) -> None:
    result = await retained(fixture, RetentionOrder())
    assert [request.kind for request in fixture.retention.requests] == EXPIRED_KINDS
    assert result.deleted == [DeletionCount(kind=kind, count=1, bytes=1) for kind in EXPIRED_KINDS]


async def test_a_kind_has_turns_until_nothing_is_left_and_returns_its_counts(
    fixture: WorkflowFixture,
) -> None:
    fixture.retention.turns[RetentionKind.FILES] = 3
    result = await retained(fixture, RetentionOrder(kinds=[RetentionKind.FILES]))
    assert result.deleted == [DeletionCount(kind=RetentionKind.FILES, count=3, bytes=3)]
    assert [request.position.id for request in fixture.retention.requests] == ["", "2", "3"]
    assert [request.so_far.count for request in fixture.retention.requests] == [0, 1, 2]
    assert len({request.now for request in fixture.retention.requests}) == 1


async def test_a_failed_kind_does_not_block_the_others_and_fails_the_run(
    fixture: WorkflowFixture,
) -> None:
    fixture.retention.failing[RetentionKind.FILES] = FOREIGN
    with pytest.raises(WorkflowFailureError) as caught:
        await retained(fixture, RetentionOrder())
    assert [request.kind for request in fixture.retention.requests] == EXPIRED_KINDS
    error = caught.value.cause
    assert isinstance(error, ApplicationError)
    assert (error.type, error.message) == (
        Failure.RETENTION_FAILED,
        "Retention failed (files 1): files: Whose is it?",
    )


async def test_a_long_run_continues_as_new_at_the_same_place(fixture: WorkflowFixture) -> None:
    fixture.retention.turns = {RetentionKind.UPLOADS: 4}
    result = await retained(fixture, RetentionOrder(max_turns=2))
    counts = {deleted.kind: deleted.count for deleted in result.deleted}
    assert counts == {**dict.fromkeys(EXPIRED_KINDS, 1), RetentionKind.UPLOADS: 4}
    assert [request.position.id for request in fixture.retention.requests][:5] == ["", "", "2", "3", "4"]
    assert len({request.now for request in fixture.retention.requests}) == 1


async def test_a_dry_run_remains_a_dry_run_in_every_turn(fixture: WorkflowFixture) -> None:
    result = await retained(fixture, RetentionOrder(dry_run=True, max_turns=1))
    assert result.dry_run
    assert all(request.dry_run for request in fixture.retention.requests)


async def test_a_cancelled_run_starts_nothing_more(fixture: WorkflowFixture) -> None:
    fixture.retention.released.clear()
    async with fixture.workers():
        run = await fixture.start_retention(RetentionOrder())
        await fixture.retention.started.wait()
        await run.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await run.result()
    assert isinstance(caught.value.cause, CancelledError)
    assert [request.kind for request in fixture.retention.requests] == [RetentionKind.FILES]
