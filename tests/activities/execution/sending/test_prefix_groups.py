"""The order in which lines with system prompts are sent.

The first line of each system prompt is sent before the others, and no permit stays unused.
"""

import asyncio
import time
from collections import Counter

import httpx
import pytest

from batchwright.activities.execution.line_sender import LineSender
from batchwright.contracts.model_registry.registry_config import BackendConfig, GatewayConfig, ModelConfig
from tests.activities.execution.fixture import (
    BATCH,
    MODEL,
    ONE_BACKEND,
    TENANT,
    ExecutionFixture,
    content_of,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)
from tests.fakes.permit_requests import PermitWaiter

pytestmark = pytest.mark.usefixtures("skipped_waits")

STATED = ModelConfig(backends=[GatewayConfig(url="http://backend", in_flight=4)])


class HeldExecution(ExecutionFixture):
    """A worker whose backend responds to a line when the test calls `respond`.

    Lines are named by numbers. The tens of a number are the line's system prompt: line 23 has system prompt
    2. Lines below 10 have no system prompt.
    """

    def __init__(self, lines: list[int], **settings: object) -> None:
        super().__init__(ok, **settings)
        self._lines = lines
        self._responses: dict[str, asyncio.Future[httpx.Response]] = {}
        self.answer = self._held

    async def begin(self, slices: int = 1) -> None:
        lines = [line_of(number) for number in self._lines]
        await plan_slice(self.storage, lines, prefix_hashes=[number // 10 for number in self._lines])
        self.running = self.start(request(slices=slices))

    def assume_seconds(self, *, prompt: float) -> None:
        """Let the worker assume that the backend computes a system prompt in so many seconds.

        A response to a line whose system prompt is already computed takes a tenth of a second.
        """
        router = self.backends.router_for(MODEL)
        assert router is not None
        for group in range(101, 105):
            router.prefixes.record_success(group, 0.1 + prompt)
            router.prefixes.record_success(group, 0.1)

    async def sent_after(self, count: int) -> list[str]:
        await eventually(lambda: len(self.sent) == count)
        return self.sent

    def respond(self, line: str, response: httpx.Response | None = None) -> None:
        self._responses.pop(line).set_result(response or ok(line))

    async def respond_to_all(self) -> None:
        def responded() -> bool:
            for line in list(self._responses):
                self.respond(line)
            return self.running.done()

        await eventually(responded)

    async def _held(self, sent: httpx.Request) -> httpx.Response:
        response = self._responses[content_of(sent)] = asyncio.get_running_loop().create_future()
        return await response


async def test_a_permit_goes_to_another_group_until_the_first_response_and_none_stays_idle() -> None:
    execution = HeldExecution([11, 12, 13, 21, 22, 31], model_in_flight=4)
    await execution.begin()
    assert await execution.sent_after(4) == ["11", "21", "31", "12"]
    execution.respond("21")
    assert (await execution.sent_after(5))[-1] == "22"
    await execution.respond_to_all()
    assert (await execution.running).completed == 6
    assert Counter(execution.sent) == Counter(["11", "12", "13", "21", "22", "31"])


async def test_after_the_first_response_all_lines_of_the_group_follow_before_another_group_begins() -> None:
    execution = HeldExecution([11, 12, 13, 21, 31], model_in_flight=2)
    await execution.begin()
    assert await execution.sent_after(2) == ["11", "21"]
    execution.respond("11")
    assert (await execution.sent_after(3))[-1] == "12"
    execution.respond("21")
    assert (await execution.sent_after(4))[-1] == "13"
    await execution.respond_to_all()


async def test_if_the_first_line_of_a_group_fails_the_next_one_goes_ahead() -> None:
    execution = HeldExecution([11, 12, 13, 21], model_in_flight=2)
    await execution.begin()
    assert await execution.sent_after(2) == ["11", "21"]
    execution.respond("11", status(400))
    assert (await execution.sent_after(3))[-1] == "12"
    await execution.respond_to_all()
    result = await execution.running
    assert (result.completed, result.failed) == (3, 1)


async def test_a_permit_stays_with_its_group_if_the_backend_states_how_much_it_takes_at_once() -> None:
    lines = [11, 12, 13, 21, 22, 31, 32, 41, 51]
    execution = HeldExecution(lines, model_in_flight=4, config=STATED)
    await execution.begin()
    assert await execution.sent_after(4) == ["11", "21", "31", "41"]
    execution.respond("31")
    assert (await execution.sent_after(5))[-1] == "32"
    execution.respond("11")
    assert (await execution.sent_after(6))[-1] == "12"
    execution.respond("41")
    assert (await execution.sent_after(7))[-1] == "51"
    await execution.respond_to_all()
    assert (await execution.running).completed == len(lines)


async def test_a_slice_whose_groups_are_all_full_leaves_the_permit_to_another_slice_of_its_batch() -> None:
    execution = HeldExecution([11, 12, 13], model_in_flight=2, config=STATED)
    await execution.begin()
    await execution.sent_after(2)
    other = PermitWaiter(execution.context.permits, MODEL, TENANT, batch=BATCH, number=1)
    execution.respond("12", status(400))  # the group is still cold, with a line in flight
    await eventually(lambda: other.done)
    assert execution.sent == ["11", "12"]
    other.permit.release()
    assert (await execution.sent_after(3))[-1] == "13"
    await execution.respond_to_all()


async def test_the_slice_whose_prompt_is_in_a_free_slot_gets_the_next_permit() -> None:
    execution = HeldExecution([11, 12, 13], model_in_flight=2, config=STATED)
    await execution.begin()
    await execution.sent_after(2)
    first = PermitWaiter(execution.context.permits, MODEL, TENANT, batch=BATCH, number=-1, cost=1)
    execution.respond("11")
    assert (await execution.sent_after(3))[-1] == "13"
    assert not first.done
    execution.respond("12")
    await eventually(lambda: first.done)
    first.permit.release()
    await execution.respond_to_all()


async def test_a_new_prompt_goes_after_a_line_whose_slot_becomes_free_at_the_same_moment() -> None:
    execution = HeldExecution([11, 21, 22, 23, 31], model_in_flight=2, config=STATED)
    await execution.begin()
    await execution.sent_after(2)
    execution.respond("21")
    assert await execution.sent_after(3) == ["11", "21", "22"]
    execution.respond("11")
    execution.respond("22")
    assert (await execution.sent_after(5))[-2:] == ["23", "31"]
    await execution.respond_to_all()


async def test_a_permit_stays_with_its_group_after_another_worker_has_taken_a_part_of_the_limit() -> None:
    lines = [number for group in (10, 20, 30, 40) for number in range(group + 1, group + 4)]
    execution = HeldExecution(lines, model_in_flight=4, config=STATED)
    await execution.begin()
    assert await execution.sent_after(4) == ["11", "21", "31", "41"]
    execution.context.permits.backends.set_shares({"http://backend": 2})
    for line in ("11", "21", "31"):
        execution.respond(line)
    assert (await execution.sent_after(5))[-1] == "32"
    execution.respond("41")
    assert (await execution.sent_after(6))[-1] == "42"
    await execution.respond_to_all()
    assert (await execution.running).completed == len(lines)


async def test_a_slice_that_begins_leaves_permits_to_the_prompts_of_slices_that_follow() -> None:
    execution = HeldExecution([11, 12, 13], model_in_flight=2, config=STATED)
    await execution.begin(slices=2)
    await eventually(lambda: bool(execution.sent))
    assert execution.sent == ["11"]
    other = PermitWaiter(execution.context.permits, MODEL, TENANT, batch=BATCH, number=2, cost=1)
    assert other.done
    other.permit.release()
    assert await execution.sent_after(2) == ["11", "12"]  # no other slice follows, so no permit stays idle
    await execution.respond_to_all()
    assert (await execution.running).completed == 3


async def test_a_line_waits_for_the_slot_that_has_its_prompt_if_computing_it_again_takes_longer() -> None:
    execution = HeldExecution([11, 12, 13], model_in_flight=2, config=STATED)
    execution.assume_seconds(prompt=100.0)
    await execution.begin()
    await eventually(lambda: bool(execution.sent))
    began = time.monotonic()
    other = PermitWaiter(execution.context.permits, MODEL, TENANT, batch="another batch")
    assert other.done  # the permit that is not used is free for others
    other.permit.release()
    execution.respond("11")
    assert await execution.sent_after(2) == ["11", "12"]
    assert time.monotonic() - began < 0.9
    await execution.respond_to_all()
    assert (await execution.running).completed == 3


async def test_a_line_is_sent_at_last_if_no_slot_with_its_prompt_becomes_free() -> None:
    execution = HeldExecution([11, 12], model_in_flight=2, config=STATED)
    execution.assume_seconds(prompt=100.0)
    await execution.begin()
    await eventually(lambda: bool(execution.sent))
    began = time.monotonic()
    assert await execution.sent_after(2) == ["11", "12"]
    assert 0.9 < time.monotonic() - began < 1.2
    await execution.respond_to_all()


async def test_a_line_that_waits_does_not_request_permits_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model has more in flight than its backends allow together, but one of these backends has room."""
    queue_next, calls = LineSender.queue_next, 0

    def counted(sender: LineSender) -> None:
        nonlocal calls
        calls += 1
        assert calls < 1000
        queue_next(sender)

    backends: list[BackendConfig] = [
        GatewayConfig(url=f"http://{name}", in_flight=4) for name in ("backend", "other")
    ]
    lines = [11, 21, 31, 41, 51, 61, 12, 13]
    execution = HeldExecution(lines, model_in_flight=16, config=ModelConfig(backends=backends))
    execution.assume_seconds(prompt=100.0)
    await execution.begin()
    await execution.sent_after(6)
    monkeypatch.setattr(LineSender, "queue_next", counted)
    execution.context.permits.backends.set_shares({"http://backend": 1, "http://other": 4})
    assert (await execution.sent_after(7))[-1] == "12"
    await execution.respond_to_all()
    assert (await execution.running).completed == 8
    assert calls < 300


async def test_a_prompt_that_is_computed_quickly_is_computed_in_a_second_slot_at_once() -> None:
    execution = HeldExecution([11, 12], model_in_flight=2, config=STATED)
    execution.assume_seconds(prompt=0.01)
    began = time.monotonic()
    await execution.begin()
    await execution.sent_after(2)
    assert time.monotonic() - began < 0.5
    await execution.respond_to_all()


@pytest.mark.parametrize("is_stated", [True, False])
async def test_a_worker_takes_more_slices_if_the_groups_of_those_it_has_are_full(is_stated: bool) -> None:
    config = STATED if is_stated else ONE_BACKEND
    execution = HeldExecution([11, 12, 13, 14, 15, 16, 17, 18], model_in_flight=4, config=config)
    await execution.begin()
    await execution.sent_after(4)
    assert execution.context.demand.wants_another(MODEL) is is_stated
    await execution.respond_to_all()


async def test_lines_are_sent_in_the_order_of_the_file_if_the_operator_wants_that() -> None:
    execution = HeldExecution([11, 12, 21, 13], model_in_flight=3, plan_order="file")
    await execution.begin()
    assert await execution.sent_after(3) == ["11", "12", "21"]
    await execution.respond_to_all()
    assert (await execution.running).completed == 4
