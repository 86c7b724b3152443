"""The order of results of a batch while it runs. At any time, they are the beginning of the final file."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from batchwright.api.services.live_results import reading_order
from batchwright.api.services.live_results.result_stream import LiveResults, ResultQuery
from batchwright.contracts.errors import LineCode
from batchwright.rules.planning.duplicate_list import Duplicate, encode_duplicates
from batchwright.rules.stored_objects import object_keys
from tests.activities.finalization.settled_batch import a_batch
from tests.fakes.api import error_of
from tests.unit.api.services.live_results.live_batch import LiveBatch, lines_of


async def test_settled_lines_are_read_in_input_order_up_to_the_first_unsettled_line(live: LiveBatch) -> None:
    batch = live.batch
    await live.settle(batch.success(2), batch.success(0))
    await live.settle(batch.failure(1), batch.success(4))
    answer = await live.get()
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/jsonl")
    assert answer.content == lines_of(batch.success(0), batch.success(2))
    assert (await live.get(status="failed")).content == lines_of(batch.failure(1))


async def test_at_any_time_the_lines_are_the_beginning_of_the_final_files(live: LiveBatch) -> None:
    batch, seen = live.batch, {"completed": [b""], "failed": [b""]}
    for n in (3, 0, 7, 1, 2, 6, 4):
        await live.settle(batch.failure(n) if n in (1, 6) else batch.success(n, f"answer {n}" * 1000))
        for status, found in seen.items():
            found.append((await live.get(status=status)).content)
    await live.finish()
    for status, kind in (("completed", "output"), ("failed", "error")):
        whole = await batch.content(kind)
        assert seen[status] == sorted(seen[status], key=len)
        assert all(whole.startswith(part) for part in seen[status])
        assert seen[status][-1] == whole == (await live.get(status=status)).content


async def test_a_batch_whose_input_is_not_validated_has_no_results(live: LiveBatch) -> None:
    live.gateway.ingestions.clear()
    assert (await live.get()).content == b""


async def test_reading_continues_after_a_line(live: LiveBatch) -> None:
    batch = live.batch
    await live.settle(*(batch.failure(n) if n == 1 else batch.success(n) for n in range(5)))
    first = await live.get()
    third = batch.success(2).payload[7:49].decode()
    assert (await live.get(after=third)).content == lines_of(batch.success(3), batch.success(4))
    await live.settle(batch.success(6), batch.success(7))
    last = first.content.splitlines()[-1][7:49].decode()
    rest = await live.get(after=last)
    assert rest.content == lines_of(batch.success(6), batch.success(7))
    await live.finish()
    assert (await live.get(after=last)).content == rest.content
    assert first.content + rest.content == await batch.content("output")


@pytest.mark.parametrize("is_ended", [False, True])
async def test_only_a_line_that_the_request_selects_can_be_continued_after(
    live: LiveBatch, is_ended: bool
) -> None:
    batch = live.batch
    await live.settle(*(batch.failure(n) if n == 1 else batch.success(n) for n in range(8) if n != 5))
    if is_ended:
        await live.finish()
    failed = batch.failure(1).payload[7:49].decode()
    for after in (failed, "batch_req_" + "0" * 32, "batch_req_", "", "\x00", '"'):
        answer = await live.get(after=after)
        assert (answer.status_code, error_of(answer).param) == (400, "after"), after
    assert (await live.get(after=failed, status="failed")).content == lines_of(
        batch.failure(5, LineCode.MODEL_NOT_FOUND)
    )


async def test_a_line_that_is_not_settled_yet_cannot_be_continued_after(live: LiveBatch) -> None:
    answer = await live.get(after=live.batch.success(3).payload[7:49].decode())
    assert (answer.status_code, error_of(answer).param) == (400, "after")


async def test_results_of_one_custom_id_can_be_read(live: LiveBatch) -> None:
    batch = live.batch
    await live.settle(*(batch.success(n) for n in range(8) if n != 5))
    assert (await live.get(custom_id="line-2")).content == lines_of(batch.success(2))
    assert (await live.get(custom_id="line-")).content == b""
    await live.finish()
    assert (await live.get(custom_id="line-2")).content == lines_of(batch.success(2))
    assert (await live.get(custom_id="line-5", status="failed")).content == await batch.content("error")


@pytest.mark.parametrize(
    ("param", "value"), [("status", "done"), ("status", ""), ("follow", "1"), ("order", "id")]
)
async def test_unknown_values_are_refused(live: LiveBatch, param: str, value: str) -> None:
    answer = await live.get(**{param: value})
    assert (answer.status_code, error_of(answer).param) == (400, param)


async def test_another_tenant_gets_404(live: LiveBatch) -> None:
    await live.settle(live.batch.success(0))
    assert (await live.get(tenant="other")).status_code == 404


async def test_a_success_counts_and_not_an_earlier_failure(live: LiveBatch) -> None:
    batch = live.batch
    await live.settle(batch.failure(0))
    await live.settle(batch.success(0))
    assert (await live.get()).content == lines_of(batch.success(0))
    assert (await live.get(status="failed")).content == b""


async def test_a_duplicate_is_settled_together_with_its_original() -> None:
    batch = await a_batch(lines=4, models=("a",))
    batch.unserved = frozenset({2, 3})
    await batch.prepare()
    await batch.storage.delete(object_keys.unserved_segment(batch.prefix, 0))
    batch.unserved = frozenset()
    first = batch.lines[0].offset
    copies = [Duplicate(batch.lines[n].offset, first, f"copy-é-{n}") for n in (2, 3)]
    await batch.storage.put(object_keys.duplicates(batch.prefix, "a"), encode_duplicates(copies))
    live = LiveBatch(batch, duplicates=2)
    live.request = live.request.model_copy(
        update={"models": [live.request.models[0].model_copy(update={"lines": 2})]}
    )
    await live.settle(batch.success(1))
    assert (await live.get()).content == b""
    await live.settle(batch.success(0))
    found = (await live.get()).content
    assert found.count(b"\n") == 4
    assert (await live.get(custom_id="copy-é-3")).content == found.splitlines(keepends=True)[3]
    by_settlement = (await live.get(order="settled")).content.splitlines(keepends=True)
    assert by_settlement == [found.splitlines(keepends=True)[n] for n in (1, 0, 2, 3)]
    await live.finish()
    assert found == await batch.content("output")


async def test_in_the_order_of_settlement_no_line_waits_for_another_one(live: LiveBatch) -> None:
    batch = live.batch
    query = ResultQuery(follow=True, in_input_order=False)
    follower = await live.follow(LiveResults(live.deps), query)
    await live.settle(batch.success(6), batch.failure(7))
    await follower.read_lines(1)
    await live.settle(batch.success(2), batch.success(4))
    await follower.read_lines(3)
    assert follower.data == lines_of(batch.success(6), batch.success(2), batch.success(4))
    assert (await live.get(order="settled")).content.count(b"\n") == 3
    failed = (await live.get(order="settled", status="failed")).content
    assert [json.loads(each)["custom_id"] for each in failed.splitlines()] == ["line-5", "line-7"]
    await live.settle(batch.failure(0), batch.success(1), batch.success(3))
    await live.finish()
    await follower.read_to_end()
    output = await batch.content("output")
    assert sorted(follower.data.splitlines()) == sorted(output.splitlines())
    assert (await live.get(order="settled")).content == output


async def test_in_the_order_of_settlement_a_line_comes_once_wherever_its_result_is_moved(
    live: LiveBatch,
) -> None:
    batch = live.batch
    query = ResultQuery(follow=True, in_input_order=False)
    follower = await live.follow(LiveResults(live.deps), query)
    old = [await live.settle(batch.success(4)), await live.settle(batch.failure(2))]
    await follower.read_lines(1)
    await live.settle(batch.success(4), batch.failure(2), batch.success(3))
    for key in old:
        await batch.storage.delete(key)
    await follower.read_lines(2)
    await live.settle(batch.success(2))  # counts, and not the earlier failure
    await follower.read_lines(3)
    assert follower.data == lines_of(batch.success(4), batch.success(3), batch.success(2))


async def test_only_results_in_input_order_can_be_continued_after_a_line(live: LiveBatch) -> None:
    await live.settle(live.batch.success(0))
    after = (await live.get()).content[7:49].decode()
    answer = await live.get(order="settled", after=after)
    assert (answer.status_code, error_of(answer).param) == (400, "after")


async def test_many_lines_are_read_in_several_windows() -> None:
    batch = await a_batch(lines=2500, models=("a",))
    live = LiveBatch(batch)
    order: Sequence[int] = [n * 7 % 2500 for n in range(2500)]  # 7 does not divide 2500
    for start in range(0, 2500, 250):
        await live.settle(*(batch.success(n) for n in order[start : start + 250]))
    found = (await live.get()).content
    await live.finish()
    assert found == await batch.content("output")


async def test_other_requests_run_while_a_reader_passes_lines_that_it_does_not_select(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, turns = await a_batch(lines=8, unserved=[5]), 0  # storage in memory does not let others run
    live = LiveBatch(batch)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(reading_order, "_LOOKED_AT_ONCE", 1)
    await live.settle(*(batch.success(n) for n in range(5)))
    follower = await live.follow(LiveResults(live.deps), ResultQuery(success=False, follow=True))
    async with asyncio.TaskGroup() as tasks:
        counter = tasks.create_task(count())
        await follower.read_lines(1)  # line 5
        counter.cancel()
    assert turns >= 5
