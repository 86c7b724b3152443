"""Hooks before each request: what they may do to a line, and that what they break is that line alone."""

import asyncio
import json
import threading
import time
from collections import Counter
from contextlib import suppress

import httpx
import pytest

from batchwright.inference.hooks import Call, Hooks, Refused
from batchwright.rules.segments import Kind
from batchwright.settings import SettingsError, load
from tests.activities.execution_house import (
    BATCH,
    House,
    body_of,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
)

HERE = "tests.activities.test_execution_hooks"
NOT_CALLABLE = 3
SHORT = 0.4  # seconds: a hook's patience, in which a thread of a busy machine gets its turn
calls: Counter[str] = Counter()


def content(call: Call) -> str:
    return json.loads(call.body)["messages"][0]["content"]


def leaves(call: Call) -> None:
    assert (call.tenant, call.batch_id, call.model) == ("tenant-a", BATCH, "m")
    assert call.endpoint == "/v1/chat/completions"
    assert call.custom_id == f"c-{content(call)}"


async def adds_a_user(call: Call) -> dict[str, object]:
    return {**json.loads(call.body), "user": call.tenant}


def as_bytes(call: Call) -> bytes:
    return call.body.replace(b"{", b'{"seed":7,', 1)


def refuses_two(call: Call) -> None:
    if content(call) == "2":
        raise Refused("no twos here")


def breaks_at_two(call: Call) -> None:
    calls[content(call)] += 1
    if content(call) == "2":
        raise KeyError("sk-secret")


async def hangs_at_two(call: Call) -> None:
    if content(call) == "2":
        await asyncio.Event().wait()


def blocks_at_two(call: Call) -> None:
    if content(call) == "2":
        time.sleep(2 * SHORT)


HANGING = 40
release = threading.Event()


def hangs_below_forty(call: Call) -> None:
    if int(content(call)) < HANGING:
        release.wait()


def renames(call: Call) -> dict[str, object]:
    return {**json.loads(call.body), "model": "another"}


def stops_at_two(call: Call) -> None:
    if content(call) == "2":
        raise SystemExit(1)


async def leaves_at_two(call: Call) -> None:
    if content(call) == "2":
        raise SystemExit(1)


async def cancels_at_two(call: Call) -> None:
    if content(call) == "2":
        raise asyncio.CancelledError


class Unspeakable(Refused):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


async def unspeakable_at_two(call: Call) -> None:
    if content(call) == "2":
        raise Unspeakable


class Unprintable(Exception):
    __repr__ = Unspeakable.__str__


async def unprintable_at_two(call: Call) -> None:
    if content(call) == "2":
        raise Unprintable


async def heeds_no_cancel_at_two(call: Call) -> None:
    while content(call) == "2" and not release.is_set():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(SHORT / 4)


def rubbish_at_two(call: Call) -> object:
    return 7 if content(call) == "2" else None


def no_json_at_two(call: Call) -> object:
    return b"{" if content(call) == "2" else None


def fails_once_at_two(call: Call) -> None:
    calls[content(call)] += 1
    if calls["2"] == 1 and content(call) == "2":
        raise RuntimeError("once")


class Stateful:
    def __init__(self) -> None:
        self.seen = 0

    async def __call__(self, call: Call) -> dict[str, object]:
        self.seen += 1
        return {**json.loads(call.body), "seed": self.seen}


async def run(*hooks: str, **settings: object) -> House:
    """Five lines, through hooks of this module."""
    calls.clear()
    names = [f"{HERE}:{hook}" for hook in hooks]
    house = House(ok, pre_call_hooks=names, max_backoff_seconds=0.002, **settings)
    await plan_slice(house.storage, [line_of(number) for number in range(5)])
    assert (await house.run(request())).finished
    return house


async def errors(house: House) -> dict[str, tuple[str, str]]:
    """By custom id, the code and message of lines that were not answered."""
    lines = [json.loads(record.payload) for record in (await house.settled()).values()]
    failed = [line for line in lines if line["error"]]
    return {line["custom_id"]: (line["error"]["code"], line["error"]["message"]) for line in failed}


def bodies(house: House) -> list[dict[str, object]]:
    return [json.loads(asked.content) for asked in house.requests]


async def test_a_hook_that_leaves_the_body_leaves_its_bytes() -> None:
    house = await run("leaves")
    assert sorted(asked.content for asked in house.requests) == [body_of(number) for number in range(5)]


@pytest.mark.parametrize(
    ("hooks", "added"),
    [
        (["adds_a_user"], {"user": "tenant-a"}),
        (["as_bytes"], {"seed": 7}),
        (["adds_a_user", "as_bytes"], {"user": "tenant-a", "seed": 7}),
    ],
)
async def test_hooks_rewrite_the_body_one_after_the_other(hooks: list[str], added: dict[str, object]) -> None:
    for body in bodies(await run(*hooks)):
        assert added.items() <= body.items()
        assert body["model"] == "m"


async def test_a_class_is_made_once_and_keeps_its_state() -> None:
    assert sorted(str(body["seed"]) for body in bodies(await run("Stateful"))) == ["1", "2", "3", "4", "5"]


async def test_a_refused_line_is_not_sent_and_carries_the_hooks_words() -> None:
    house = await run("refuses_two")
    assert await errors(house) == {"c-2": ("policy_rejected", "no twos here")}
    assert sorted(house.sent) == ["0", "1", "3", "4"]


@pytest.mark.parametrize(
    ("hook", "seconds", "how"),
    [
        ("breaks_at_two", 5, "failed"),
        ("hangs_at_two", SHORT, f"took longer than {SHORT} s"),
        ("blocks_at_two", SHORT, f"took longer than {SHORT} s"),
        ("rubbish_at_two", 5, "returned no body"),
        ("no_json_at_two", 5, "returned no body"),
        ("stops_at_two", 5, "failed"),
        ("leaves_at_two", 5, "failed"),
        ("cancels_at_two", 5, "failed"),
        ("unspeakable_at_two", 5, "failed"),
        ("unprintable_at_two", 5, "failed"),
        ("heeds_no_cancel_at_two", SHORT, f"took longer than {SHORT} s"),
    ],
)
async def test_a_hook_that_fails_costs_its_line_and_no_other(hook: str, seconds: float, how: str) -> None:
    release.clear()
    try:
        house = await run(hook, hook_timeout_seconds=seconds, max_attempts=2)
    finally:
        release.set()
    failed = await errors(house)
    assert failed == {"c-2": ("hook_failed", f"The hook '{HERE}:{hook}' {how}: the request was not sent.")}
    assert sorted(house.sent) == ["0", "1", "3", "4"]
    assert not house.circuit("m").is_open


async def test_plain_hooks_that_hang_hold_up_no_other_line_and_no_other_thread() -> None:
    """More of them than asyncio has threads of its own."""
    release.clear()
    house = House(
        ok,
        pre_call_hooks=[f"{HERE}:hangs_below_forty"],
        hook_timeout_seconds=60,
        model_in_flight=2 * HANGING,
    )
    await plan_slice(house.storage, [line_of(number) for number in range(2 * HANGING)])
    running = house.start(request())
    try:
        await eventually(lambda: len(house.sent) == HANGING)
        others = await asyncio.gather(*(asyncio.to_thread(int, 1) for _ in range(HANGING)))
    finally:
        release.set()
    assert sum(others) == HANGING
    assert min(map(int, house.sent[:HANGING])) == HANGING
    assert (await running).completed == 2 * HANGING


async def test_a_hook_that_writes_another_model_changes_the_body_and_neither_route_nor_books() -> None:
    house = await run("renames")
    assert {str(body["model"]) for body in bodies(house)} == {"another"}
    assert house.counted("batchwright_request_results_total", model="m", result="success") == 5


async def test_a_failing_hook_is_asked_again_as_often_as_a_backend() -> None:
    await run("breaks_at_two", max_attempts=3)
    assert calls["2"] == 3


async def test_a_hook_that_failed_once_costs_one_attempt() -> None:
    house = await run("fails_once_at_two")
    assert await errors(house) == {}
    assert sum(record.kind is Kind.ATTEMPT for record in await house.records()) == 1


async def test_the_error_of_a_hook_reaches_no_user() -> None:
    house = await run("breaks_at_two", max_attempts=1)
    assert not any(b"sk-secret" in record.payload for record in await house.records())


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("nothing", "form module:attribute"),
        (f"{HERE}:gone", "cannot be imported"),
        (f"{HERE}:NOT_CALLABLE", "cannot be called"),
    ],
)
def test_a_hook_that_is_none_is_a_wrong_setting(reference: str, said: str) -> None:
    with pytest.raises(SettingsError, match=rf"^BATCHWRIGHT_PRE_CALL_HOOKS is wrong: .*{said}"):
        Hooks(load(pre_call_hooks=[reference]))


async def test_without_hooks_nothing_is_asked() -> None:
    house = House(lambda text: httpx.Response(200, json={}))
    assert not house.tools.hooks
