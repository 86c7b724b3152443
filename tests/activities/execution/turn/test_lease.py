"""The lease of a slice, which acknowledged heartbeats renew."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from batchwright.activities.execution.slice_state.lease import (
    HEARTBEAT_SECONDS,
    HeartbeatReply,
    LeaseLost,
    SliceLease,
    is_fresh_attempt,
)
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.settings import SettingsError, load
from tests.activities.execution.fixture import (
    FakeHeartbeatServer,
    eventually,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def beating(owner: SliceLease, replies: list[HeartbeatReply]) -> AsyncGenerator["asyncio.Task[None]"]:
    task = asyncio.create_task(owner.run(SliceResult, replies.append, at_once=True))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_lease_lasts_until_the_last_acknowledged_heartbeat_is_too_old() -> None:
    clock = Clock()
    owner = SliceLease(FakeHeartbeatServer().beat(), timedelta(seconds=30), clock)
    clock.now = 24.9
    assert owner.is_valid
    clock.now = 25.0
    assert not owner.is_valid


def test_without_a_heartbeat_timeout_the_lease_never_ends() -> None:
    clock = Clock()
    owner = SliceLease(FakeHeartbeatServer().beat(), None, clock)
    clock.now = 1e9
    assert owner.is_valid


async def test_an_acknowledged_heartbeat_counts_from_the_time_it_was_sent() -> None:
    clock, server = Clock(), FakeHeartbeatServer()
    beat = server.beat()

    async def slow(details: SliceResult) -> HeartbeatReply:
        word = await beat(details)
        clock.now = 30.0  # the answer took as long as the timeout
        return word

    owner = SliceLease(slow, timedelta(seconds=30), clock)
    async with beating(owner, []):
        await eventually(lambda: clock.now == 30.0)
        assert not owner.is_valid


async def test_an_unacknowledged_heartbeat_does_not_extend_the_lease() -> None:
    clock, server = Clock(), FakeHeartbeatServer(HeartbeatReply.UNREACHABLE)
    owner = SliceLease(server.beat(), timedelta(seconds=30), clock)
    clock.now = 25.0
    replies: list[HeartbeatReply] = []
    async with beating(owner, replies):
        await eventually(lambda: bool(server.heartbeats))
        assert (owner.is_valid, replies) == (False, [])


async def test_a_cancel_is_received_and_heartbeats_continue() -> None:
    clock, server = Clock(), FakeHeartbeatServer(HeartbeatReply.CANCEL_REQUESTED)
    owner = SliceLease(server.beat(), timedelta(seconds=30), clock)
    clock.now = 25.0
    replies: list[HeartbeatReply] = []
    async with beating(owner, replies) as task:
        await eventually(lambda: bool(replies))
        assert (replies, owner.is_valid, task.done()) == ([HeartbeatReply.CANCEL_REQUESTED], True, False)


async def test_a_lost_slice_is_reported_once_and_heartbeats_end() -> None:
    owner = SliceLease(FakeHeartbeatServer(HeartbeatReply.LEASE_LOST).beat(), timedelta(seconds=30))
    replies: list[HeartbeatReply] = []
    async with beating(owner, replies) as task:
        await task
    assert replies == [HeartbeatReply.LEASE_LOST]


@pytest.mark.parametrize(
    ("attempt", "age", "fresh"),
    [(1, 0.1, True), (1, -0.1, True), (1, 40, False), (1, -40, False), (2, 0, False)],
)
def test_only_a_first_attempt_that_was_just_handed_out_is_fresh(
    attempt: int, age: float, fresh: bool
) -> None:
    now = datetime.now(UTC)
    info = ActivityEnvironment.default_info()
    info = dataclasses.replace(info, attempt=attempt, started_time=now - timedelta(seconds=age))
    assert is_fresh_attempt(info, now) is fresh


async def test_a_fresh_attempt_has_no_heartbeat_yet() -> None:
    server = FakeHeartbeatServer()
    owner = SliceLease(server.beat(), timedelta(seconds=30))
    task = asyncio.create_task(owner.run(SliceResult, lambda word: None, at_once=False))
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert server.heartbeats == []


def test_the_lease_lasts_for_several_heartbeat_intervals() -> None:
    shortest = 10.0
    with pytest.raises(SettingsError):
        load(heartbeat_timeout_seconds=shortest - 0.1)
    clock = Clock()
    owner = SliceLease(FakeHeartbeatServer().beat(), timedelta(seconds=shortest), clock)
    clock.now = 2 * HEARTBEAT_SECONDS
    assert owner.is_valid


@pytest.mark.parametrize("is_valid", [True, False])
@pytest.mark.parametrize("reply", HeartbeatReply)
async def test_temporal_is_asked_who_has_the_slice_only_after_the_end_of_the_lease(
    reply: HeartbeatReply, is_valid: bool
) -> None:
    clock, server = Clock(), FakeHeartbeatServer(reply)
    owner = SliceLease(server.beat(), timedelta(seconds=30), clock)
    clock.now = 24.9 if is_valid else 25.0
    if not is_valid and reply is HeartbeatReply.LEASE_LOST:
        for _ in range(2):
            with pytest.raises(LeaseLost):
                await owner.check()
    else:
        assert await owner.check() == (is_valid or reply is not HeartbeatReply.UNREACHABLE)
    assert len(server.heartbeats) == (not is_valid)


async def test_the_lease_of_a_suspended_machine_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    suspended = 0.0

    async def beat(details: SliceResult) -> HeartbeatReply:
        return HeartbeatReply.OK

    def clock_gettime(clock: int) -> float:
        return 100.0 + suspended

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    owner = SliceLease(beat, timedelta(seconds=30))
    assert owner.is_valid
    suspended = 3600.0
    assert not owner.is_valid
