"""Hooks that run before each request: what they may change. A hook that fails makes only its own
line fail.
"""

import asyncio
import json
import threading
from collections import Counter
from contextlib import suppress

import httpx
import pytest
from temporalio.activity import ActivityCancellationDetails

from batchwright.inference.hooks import HookCall, PreCallHooks, Refused, load_hooks
from batchwright.inference.limits.tenant_and_model_limits import Charge, FleetRate, Rates
from batchwright.rules.results.segment_format import RecordKind
from batchwright.settings import SettingsError, load
from batchwright.telemetry.metrics import Metrics
from tests.activities.execution.fixture import (
    BATCH,
    MODEL,
    TENANT,
    ExecutionFixture,
    body_of,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
)
from tests.clocks import skip_time

HERE = "tests.activities.execution.sending.test_hooks"
NOT_CALLABLE = 3
PATIENCE = 60  # seconds that a hook may take
calls: Counter[str] = Counter()


def content(call: HookCall) -> str:
    return json.loads(call.body)["messages"][0]["content"]


def leaves(call: HookCall) -> None:
    assert (call.tenant, call.batch_id, call.model) == ("tenant-a", BATCH, "m")
    assert call.endpoint == "/v1/chat/completions"
    assert call.custom_id == f"c-{content(call)}"


async def adds_a_user(call: HookCall) -> dict[str, object]:
    return {**json.loads(call.body), "user": call.tenant}


def as_bytes(call: HookCall) -> bytes:
    return call.body.replace(b"{", b'{"seed":7,', 1)


def refuses_two(call: HookCall) -> None:
    if content(call) == "2":
        raise Refused("no twos here")


def breaks_at_two(call: HookCall) -> None:
    calls[content(call)] += 1
    if content(call) == "2":
        raise KeyError("sk-secret")


async def hangs_at_two(call: HookCall) -> None:
    calls[content(call)] += 1
    if content(call) == "2":
        await asyncio.Event().wait()


def blocks_at_two(call: HookCall) -> None:
    calls[content(call)] += 1
    if content(call) == "2":
        release.wait()


HANGING = 40
release = threading.Event()


def hangs_below_forty(call: HookCall) -> None:
    if int(content(call)) < HANGING:
        release.wait()


def renames(call: HookCall) -> dict[str, object]:
    return {**json.loads(call.body), "model": "another"}


def stops_at_two(call: HookCall) -> None:
    if content(call) == "2":
        raise SystemExit(1)


async def leaves_at_two(call: HookCall) -> None:
    if content(call) == "2":
        raise SystemExit(1)


async def cancels_at_two(call: HookCall) -> None:
    if content(call) == "2":
        raise asyncio.CancelledError


class Unspeakable(Refused):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


async def unspeakable_at_two(call: HookCall) -> None:
    if content(call) == "2":
        raise Unspeakable


class Unprintable(Exception):
    __repr__ = Unspeakable.__str__


async def unprintable_at_two(call: HookCall) -> None:
    if content(call) == "2":
        raise Unprintable


async def heeds_no_cancel_at_two(call: HookCall) -> None:
    calls[content(call)] += 1
    while content(call) == "2" and not release.is_set():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)


def rubbish_at_two(call: HookCall) -> object:
    return 7 if content(call) == "2" else None


def no_json_at_two(call: HookCall) -> object:
    return b"{" if content(call) == "2" else None


def fails_once_at_two(call: HookCall) -> None:
    calls[content(call)] += 1
    if calls["2"] == 1 and content(call) == "2":
        raise RuntimeError("once")


async def waits_for_release(call: HookCall) -> None:
    calls[content(call)] += 1
    await asyncio.to_thread(release.wait)


class Stateful:
    def __init__(self) -> None:
        self.seen = 0

    async def __call__(self, call: HookCall) -> dict[str, object]:
        self.seen += 1
        return {**json.loads(call.body), "seed": self.seen}


async def planned(*hooks: str, **settings: object) -> ExecutionFixture:
    """Return a fixture with five planned lines and with these hooks, which are functions of this module."""
    calls.clear()
    names = [f"{HERE}:{hook}" for hook in hooks]
    execution = ExecutionFixture(ok, pre_call_hooks=names, max_backoff_seconds=0.002, **settings)
    await plan_slice(execution.storage, [line_of(number) for number in range(5)])
    return execution


async def run(*hooks: str, **settings: object) -> ExecutionFixture:
    execution = await planned(*hooks, **settings)
    assert (await execution.run(request())).finished
    return execution


async def errors(execution: ExecutionFixture) -> dict[str, tuple[str, str]]:
    """Return the code and message of failed lines, by custom id."""
    lines = [json.loads(record.payload) for record in (await execution.settled()).values()]
    failed = [line for line in lines if line["error"]]
    return {line["custom_id"]: (line["error"]["code"], line["error"]["message"]) for line in failed}


def bodies(execution: ExecutionFixture) -> list[dict[str, object]]:
    return [json.loads(sent.content) for sent in execution.requests]


async def test_a_hook_that_does_not_change_the_body_keeps_its_bytes() -> None:
    execution = await run("leaves")
    assert sorted(sent.content for sent in execution.requests) == [body_of(number) for number in range(5)]


@pytest.mark.parametrize(
    ("hooks", "added"),
    [
        (["adds_a_user"], {"user": "tenant-a"}),
        (["as_bytes"], {"seed": 7}),
        (["adds_a_user", "as_bytes"], {"user": "tenant-a", "seed": 7}),
    ],
)
async def test_hooks_rewrite_the_body_one_after_the_other(hooks: list[str], added: dict[str, object]) -> None:
    execution = await run(*hooks)
    expected = [json.loads(body_of(number)) | added for number in range(5)]
    assert sorted(bodies(execution), key=str) == sorted(expected, key=str)


async def test_a_hook_class_is_instantiated_once_and_keeps_its_state() -> None:
    assert sorted(str(body["seed"]) for body in bodies(await run("Stateful"))) == ["1", "2", "3", "4", "5"]


async def test_a_line_refused_by_a_hook_is_not_sent_and_has_the_message_of_the_hook() -> None:
    execution = await run("refuses_two")
    assert await errors(execution) == {"c-2": ("policy_rejected", "no twos here")}
    assert sorted(execution.sent) == ["0", "1", "3", "4"]


@pytest.mark.parametrize(
    ("hook", "how"),
    [
        ("breaks_at_two", "failed"),
        ("rubbish_at_two", "returned no body"),
        ("no_json_at_two", "returned no body"),
        ("stops_at_two", "failed"),
        ("leaves_at_two", "failed"),
        ("cancels_at_two", "failed"),
        ("unspeakable_at_two", "failed"),
        ("unprintable_at_two", "failed"),
    ],
)
async def test_a_hook_that_fails_fails_only_its_own_line(hook: str, how: str) -> None:
    execution = await run(hook, hook_timeout_seconds=PATIENCE, max_attempts=2)
    await only_line_two_failed(execution, hook, how)


@pytest.mark.parametrize("hook", ["hangs_at_two", "blocks_at_two", "heeds_no_cancel_at_two"])
async def test_a_hook_that_never_returns_fails_only_its_own_line(hook: str) -> None:
    release.clear()
    try:
        execution = await planned(hook, hook_timeout_seconds=PATIENCE, max_attempts=2)
        running = execution.start(request())
        await eventually(lambda: len(execution.sent) == 4)
        for attempt in (1, 2):
            await eventually(lambda attempt=attempt: calls["2"] == attempt)
            skip_time(PATIENCE + 1)
        assert (await running).finished
    finally:
        release.set()
    await only_line_two_failed(execution, hook, f"took longer than {PATIENCE} s")


async def only_line_two_failed(execution: ExecutionFixture, hook: str, how: str) -> None:
    failed = await errors(execution)
    assert failed == {"c-2": ("hook_failed", f"The hook '{HERE}:{hook}' {how}: the request was not sent.")}
    assert sorted(execution.sent) == ["0", "1", "3", "4"]
    assert not execution.circuit("m").is_open


async def test_synchronous_hooks_that_hang_delay_no_other_line_and_block_no_other_thread() -> None:
    """The number of hooks that hang is greater than the number of threads in asyncio's default executor."""
    release.clear()
    execution = ExecutionFixture(
        ok,
        pre_call_hooks=[f"{HERE}:hangs_below_forty"],
        hook_timeout_seconds=60,
        model_in_flight=2 * HANGING,
    )
    await plan_slice(execution.storage, [line_of(number) for number in range(2 * HANGING)])
    running = execution.start(request())
    try:
        await eventually(lambda: len(execution.sent) == HANGING)
        others = await asyncio.gather(*(asyncio.to_thread(int, 1) for _ in range(HANGING)))
    finally:
        release.set()
    assert sum(others) == HANGING
    assert min(map(int, execution.sent[:HANGING])) == HANGING
    assert (await running).completed == 2 * HANGING


async def test_hooks_run_again_after_the_system_could_not_start_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hooks = PreCallHooks(load(pre_call_hooks=[f"{HERE}:leaves"], hook_timeout_seconds=1), Metrics())
    call = HookCall("tenant-a", BATCH, "c-1", "m", "/v1/chat/completions", b'{"messages":[{"content":"1"}]}')

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        for _ in range(100):
            assert not isinstance(await hooks(call), HookCall)
    assert await hooks(call) == call


async def test_a_hook_that_changes_the_model_changes_the_body_but_not_the_route_or_the_statistics() -> None:
    execution = await run("renames")
    assert {str(body["model"]) for body in bodies(execution)} == {"another"}
    assert execution.counted("batchwright_request_results_total", model="m", result="success") == 5


@pytest.mark.parametrize("hook", ["breaks_at_two", "refuses_two"])
async def test_a_line_that_a_hook_keeps_from_being_sent_uses_no_tokens_of_a_rate(
    hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = await planned(hook, max_attempts=1)
    limits, used = execution.context.permits.limits, list[int]()
    limits.model_rates, correct = {MODEL: Rates(tokens=FleetRate(10**9, 10**9))}, limits.correct

    def record(charge: Charge, tokens: int) -> None:
        used.append(tokens)
        correct(charge, tokens)

    monkeypatch.setattr(limits, "correct", record)
    assert (await execution.run(request())).finished
    assert sorted(used) == [0, 5, 5, 5, 5]


async def test_a_failing_hook_leaves_the_last_error_of_the_backend_as_it_is() -> None:
    execution = await planned("breaks_at_two", max_attempts=1)
    execution.circuit(MODEL).remember_error(TENANT, "no GPU")
    assert (await execution.run(request())).finished
    assert execution.circuit(MODEL).last_error(TENANT) == "no GPU"


async def test_a_failing_hook_is_retried_as_often_as_a_request() -> None:
    await run("breaks_at_two", max_attempts=3)
    assert calls["2"] == 3


async def test_a_hook_that_failed_once_costs_one_attempt() -> None:
    execution = await run("fails_once_at_two")
    assert await errors(execution) == {}
    assert sum(record.kind is RecordKind.ATTEMPT for record in await execution.records()) == 1


@pytest.mark.parametrize(
    ("hook", "result", "code"),
    [("refuses_two", "rejected", "policy_rejected"), ("breaks_at_two", "failed", "hook_failed")],
)
async def test_checks_are_timed_by_result_and_lines_that_hooks_stop_are_counted_by_code(
    hook: str, result: str, code: str
) -> None:
    execution = await run(hook, max_attempts=2)
    attempts = {"rejected": 1, "failed": 2}[result]
    labels, name = {"endpoint": "/v1/chat/completions"}, "batchwright_hook_duration_seconds_count"
    assert execution.counted(name, result="allowed", **labels) == 4
    assert execution.counted(name, result=result, **labels) == attempts
    assert execution.counted("batchwright_lines_settled_without_request_total", model="m", code=code) == 1
    assert execution.counted("batchwright_request_errors_by_model_total", model="m") == 1
    assert execution.counted("batchwright_request_results_total", model="m", result="error") == 0
    retried = execution.counted("batchwright_request_retries_total", model="m", category="policy")
    assert retried == attempts - 1


async def test_the_exception_text_of_a_hook_is_not_shown_to_users() -> None:
    execution = await run("breaks_at_two", max_attempts=1)
    assert not any(b"sk-secret" in record.payload for record in await execution.records())


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nothing", "form module:attribute"),
        (f"{HERE}:gone", "cannot be imported"),
        (f"{HERE}:NOT_CALLABLE", "cannot be called"),
    ],
)
def test_a_name_that_is_not_a_hook_is_a_settings_error(reference: str, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"^BATCHWRIGHT_PRE_CALL_HOOKS is wrong: .*{message}"):
        load_hooks(load(pre_call_hooks=[reference]))


async def test_without_hooks_no_hook_code_runs() -> None:
    execution = ExecutionFixture(lambda text: httpx.Response(200, json={}))
    assert not execution.context.hooks


async def test_a_line_whose_hook_ends_after_a_cancel_is_not_sent() -> None:
    release.clear()
    execution = await planned("waits_for_release")
    slice = execution.start(request())
    await eventually(lambda: calls.total() > 0)
    execution.environment.cancel(cancellation_details=ActivityCancellationDetails(cancel_requested=True))
    await asyncio.sleep(0)
    release.set()
    assert not (await slice).finished
    assert execution.sent == []
