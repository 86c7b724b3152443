"""The order in which the slices of a worker send their quarantined lines (lines that may crash workers)."""

import asyncio
import dataclasses
from collections import Counter

import httpx
import pytest

from batchwright.activities.execution.slice_state.line_quarantine import QuarantineOrder
from batchwright.activities.execution.slice_state.line_queue import LineAttempt
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.rules import ids
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord, SegmentWriter
from batchwright.rules.stored_objects import object_keys
from tests.activities.execution.fixture import (
    MODEL,
    TENANT,
    ExecutionFixture,
    content_of,
    line_of,
    ok,
    plan_slice,
    request,
)

BATCHES = [f"batch_{number:032}" for number in range(4)]
LINES = 3


class SlicesAfterCrashes(ExecutionFixture):
    """A fixture that runs one slice of each batch, in whose last attempt a worker crashed with all lines."""

    def __init__(self) -> None:
        super().__init__(ok)
        self.answer = self._answer_after_a_second
        crashed = SliceResult(attempt=3, crashes=2, first_crash=1, has_read=True)
        self.environment.info = dataclasses.replace(
            self.environment.info, attempt=4, heartbeat_details=[crashed.model_dump()]
        )

    async def plan(self) -> None:
        offsets = await plan_slice(self.storage, [line_of(n) for n in range(LINES)])
        suspect = LineAttempt(sending_attempt="0/3").model_dump_json().encode()
        self._batch_of = {ids.request_id(batch, offset): batch for batch in BATCHES for offset in offsets}
        for batch in BATCHES:
            writer = SegmentWriter()
            for offset in offsets:
                writer.add(SegmentRecord(RecordKind.ATTEMPT, offset, suspect))
            folder = object_keys.slice_results(TENANT, batch, MODEL, 0)
            await self.storage.put(folder + "0000-000003-aa-00001", writer.finish())

    @property
    def batches_in_order(self) -> list[str]:
        """The batches of the lines that were sent, in the order of sending."""
        return [self._batch_of[sent.headers["x-request-id"]] for sent in self.requests]

    async def _answer_after_a_second(self, sent: httpx.Request) -> httpx.Response:
        await asyncio.sleep(1)
        return ok(content_of(sent))


@pytest.mark.usefixtures("skipped_waits")
async def test_slices_send_their_quarantined_lines_in_turn() -> None:
    worker = SlicesAfterCrashes()
    await worker.plan()
    results = await asyncio.gather(*(worker.run(request(batch_id=batch)) for batch in BATCHES))
    assert all(result.finished for result in results)
    order = worker.batches_in_order
    rounds = [Counter(order[start : start + len(BATCHES)]) for start in range(0, len(order), len(BATCHES))]
    assert rounds == [Counter(BATCHES)] * LINES


def test_a_batch_with_one_slice_does_not_wait_for_all_slices_of_another_batch() -> None:
    order = QuarantineOrder()
    large, small = [asyncio.Event() for _ in range(3)], asyncio.Event()
    waiting = [("large", wake) for wake in large] + [("small", small)]
    sent = list[asyncio.Event]()
    while len(sent) < 8:
        ((batch, wake),) = [each for each in waiting if order.is_next(*each)]
        order.leave(batch, wake, has_sent=True)
        sent.append(wake)
    assert sent == [large[0], small, large[1], small, large[2], small, large[0], small]


def test_a_slice_that_leaves_before_it_sends_wakes_the_next_slice_of_its_batch() -> None:
    order, wakes = QuarantineOrder(), [asyncio.Event() for _ in range(3)]
    places = list(zip(("a", "a", "b"), wakes, strict=True))
    assert [order.is_next(*place) for place in places] == [True, False, False]
    order.leave(*places[0])
    assert [wake.is_set() for wake in wakes] == [False, True, False]
    order.leave(*places[1])
    order.leave(*places[1])
    assert wakes[2].is_set()
    assert order.is_next(*places[2])
