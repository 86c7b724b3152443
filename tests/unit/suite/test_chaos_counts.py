"""The counters of the chaos runs: each lost, doubled or repeated line is counted."""

import time
from collections import Counter
from collections.abc import Iterable

import pytest
from openai.types import Batch

from tests.chaos import events as chaos_events
from tests.chaos.calls import Call, CallWitness
from tests.chaos.check import Verdict, judge
from tests.chaos.events import EventWitness
from tests.chaos.load import Seen, Submission
from tests.chaos.run import Report, check_crashed_lines
from tests.chaos.schedule import Kind
from tests.chaos.user import User
from tests.chaos.witness import Entry, Ledger, Witness
from tests.fakes.storage import MemoryStorage
from tests.fakes.webhook_receiver import ReceivedWebhook

LINES = ("a", "b", "c")
USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
}


class FilesOnly(User):
    """A user who gets an output file and an error file with these lines."""

    def __init__(self, answered: Iterable[str], crashed: Iterable[str]) -> None:
        errors = "".join(_error(custom_id) for custom_id in crashed)
        self._texts = {"file-1": "".join(_result(custom_id) for custom_id in answered), "file-2": errors}

    async def content(self, file_id: str | None) -> str:
        return self._texts.get(file_id or "", "")


def _result(custom_id: str) -> str:
    body = '{"usage": {"total_tokens": 1}}'
    response = f'{{"status_code": 200, "body": {body}}}'
    return f'{{"id": "req_{custom_id}", "custom_id": "{custom_id}", "response": {response}, "error": null}}\n'


def _error(custom_id: str) -> str:
    error = '{"code": "worker_crashed", "message": "Workers crashed."}'
    return f'{{"id": "req_{custom_id}", "custom_id": "{custom_id}", "response": null, "error": {error}}}\n'


async def verdict_on(custom_ids: Iterable[str], crashed: str = "") -> Verdict:
    ids = list(custom_ids)
    counts = {"total": len(LINES), "completed": len(ids), "failed": len(crashed)}
    batch = Batch.model_validate(
        {
            "id": "batch_1",
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "input_file_id": "file-0",
            "completion_window": "24h",
            "created_at": 1,
            "status": "completed",
            "output_file_id": "file-1",
            "error_file_id": "file-2",
            "request_counts": counts,
            "usage": USAGE | {"total_tokens": len(ids)},
        }
    )
    submission = Submission([], dict.fromkeys(LINES, "answered"), "completed")
    return await judge(FilesOnly(ids, crashed), Seen(submission, "batch_1", ["completed"]), batch)


@pytest.mark.parametrize(
    ("custom_ids", "lost", "doubled"),
    [("abc", 0, 0), ("ac", 1, 0), ("abbc", 0, 1), ("aab", 1, 1), ("", 3, 0)],
)
async def test_a_line_that_is_missing_or_twice_in_the_files_is_counted(
    custom_ids: str, lost: int, doubled: int
) -> None:
    verdict = await verdict_on(custom_ids)
    assert (verdict.lines, verdict.lost, verdict.doubled) == (3, lost, doubled)
    assert bool(verdict.broken) == bool(lost or doubled)


async def test_a_line_that_failed_as_worker_crashed_is_excused_by_three_ended_workers() -> None:
    verdict = await verdict_on("ac", crashed="b")
    assert (verdict.lost, verdict.crashed, verdict.broken) == (0, 1, [])
    report = Report(1, 60.0, "disk", verdicts=[verdict], kills=2)
    check_crashed_lines(report)
    assert report.broken == ["1 lines failed as worker_crashed, but only 2 workers ended"]
    report = Report(1, 60.0, "disk", verdicts=[verdict], kills=2, disturbed=Counter({Kind.FREEZE_WORKER: 1}))
    check_crashed_lines(report)
    assert (report.crashed_lines, report.broken) == (1, [])


class Sent(Witness):
    """A witness of a backend whose ledger has these entries."""

    def __init__(self, *entries: Entry) -> None:
        super().__init__(MemoryStorage(), "")
        self._entries = list(entries)

    async def ledger(self) -> Ledger:
        return Ledger(in_flight=0, entries=self._entries)


def _entry(key: str, at: float, user: str = "") -> Entry:
    return Entry(key=key, user=user, requests=1, completed=1, last_request_at=at)


async def test_a_line_that_is_sent_after_it_settled_is_counted() -> None:
    witness = Sent(_entry("before", time.time() - 60), _entry("after", time.time() + 60))
    witness.ended(["before", "after", "never sent"])
    again, _ = await witness.repeated()
    assert again == ["after"]


async def test_an_event_that_is_missing_or_has_two_ids_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos_events, "_PATIENCE_SECONDS", 0.0)
    witness = EventWitness()
    await _deliver(witness, "batch_1", "wh_1", "wh_1", "wh_1")
    await _deliver(witness, "batch_2", "wh_2", "wh_3")
    verdicts = [
        Verdict(Seen(Submission([], {}, "completed"), f"batch_{number}"), "completed") for number in (1, 2, 3)
    ]
    counts = await witness.check(verdicts)
    assert (counts.expected, counts.lost, counts.doubled, counts.repeated) == (3, 1, 1, 1)
    assert len(counts.seconds) == 2
    assert len(witness.broken) == 2


async def _deliver(witness: EventWitness, batch_id: str, *ids: str) -> None:
    for number, id in enumerate(ids):
        headers = {"webhook-id": id, "webhook-signature": f"v1,{number}"}
        witness.receive(f"{batch_id} batch.completed", ReceivedWebhook(headers, b"{}"), time.time())


def _call(name: str, *, ended_at: float | None = None, bodies: Iterable[bytes] = ()) -> Call:
    attempts = [ReceivedWebhook({"webhook-id": f"wh_{name}"}, body) for body in bodies]
    return Call(name, f"job_{name}", ended_at=ended_at, answered_at=ended_at, attempts=attempts)


async def test_a_call_that_is_lost_doubled_or_sent_again_is_counted() -> None:
    now = time.time()
    witness = CallWitness()
    for call in (
        _call("good", ended_at=now, bodies=(b"1", b"1")),
        _call("lost"),
        _call("two-lines", ended_at=now),
        _call("two-answers", ended_at=now, bodies=(b"1", b"2")),
        _call("again", ended_at=now),
        _call("never-sent", ended_at=now),
    ):
        witness.made[call.name] = call
    sent = {
        "1": ("sim:503*2 good", now - 1),
        "2": (" lost", now - 1),
        "3": (" two-lines", now - 1),
        "4": (" two-lines", now - 1),
        "5": (" two-answers", now - 1),
        "6": (" again", now + 1),
        "7": ("a line of a batch", now + 1),
    }
    counts = witness.count([_entry(key, at, user) for key, (user, at) in sent.items()])
    assert (counts.acknowledged, counts.lost, counts.doubled, counts.sent_again) == (6, 1, 2, 1)
    assert witness.broken == [
        "1 calls were lost: ['job_lost']",
        "2 calls were answered twice: ['job_two-answers', 'job_two-lines']",
        "1 calls were sent again after they had ended: ['job_again']",
        "1 calls were answered and never sent: ['job_never-sent']",
    ]


def test_a_batch_has_progressed_when_two_observations_after_the_disturbance_differ() -> None:
    seen = Seen(Submission([], {}, "completed"), "batch_1")
    seen.observe("in_progress", 1)
    seen.await_progress()
    for counts, has_progressed in ((5, False), (5, False), (6, True), (6, True)):
        seen.observe("in_progress", counts)
        assert seen.has_progressed == has_progressed
    seen.await_progress()
    assert not seen.has_progressed
    seen.end()
    assert seen.has_progressed
