"""If a process is killed after any of its steps, the next process completes the same jobs."""

import os
import shutil
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import httpx
import pytest

from tests.unit.starter.folder.jobs import STATES, Jobs, prompt_line

_MOST_ROUNDS = 5
# Each step after which something is different, in the folder or at the API. A kill loses nothing that was
# written, unlike a crash of the machine. So fsync is not one of them.
_STEPS = [
    *((os, name) for name in ("mkdir", "rename", "rmdir")),
    (httpx.Client, "send"),
]


class _Killed(BaseException):
    """Ends the program as a kill would, because none of its code handles this exception."""


def _kill_after(step: int, patch: pytest.MonkeyPatch) -> None:
    """Kill the program in this thread after step number `step`. `0` never kills it."""
    thread = threading.get_ident()
    done = count(1)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = real(*arguments, **options)
            if threading.get_ident() == thread and next(done) == step:
                raise _Killed
            return result

        return call

    for owner, name in _STEPS:
        patch.setattr(owner, name, counted(getattr(owner, name)))


def test_each_job_is_run_once_whichever_step_is_the_last_one_of_a_killed_process(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(jobs)
    kills = 0
    while was_killed(jobs, kills + 1, monkeypatch):
        kills += 1
        assert set(jobs.states().values()) <= set(STATES)  # no job is in two of them
        assert not was_killed(jobs, 0, monkeypatch)
        check(jobs)
        prepare(jobs)
    check(jobs)
    assert kills > 30


def _do_nothing(fd: int) -> None:
    pass


def prepare(jobs: Jobs) -> None:
    """Start again: with an API without data, a dropped file, a prompt, and a second file of the same name."""
    jobs.cli.api.clear()
    shutil.rmtree(jobs.path, ignore_errors=True)
    jobs.submit("b", prompt_txt="a prompt")
    (jobs.path / "input" / "ready" / "c").mkdir()
    (jobs.path / "input" / "ready" / "c" / "input.jsonl").write_text("no JSON")
    jobs.drop("a.jsonl", prompt_line("1", "one") + prompt_line("2", "two"))
    jobs.drop("b.jsonl", prompt_line("1", "a second job b"))


def was_killed(jobs: Jobs, after: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run the folder until all jobs have ended. Return True if it was killed after `after` steps."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _do_nothing)  # it would take much of the time
        _kill_after(after, patch)
        try:
            with jobs.runner() as runner:
                for _ in range(_MOST_ROUNDS):
                    if runner.round():
                        return False
                    jobs.answer()
        except _Killed:
            return True
    raise AssertionError(f"the jobs do not end: {jobs.states()}")


def check(jobs: Jobs) -> None:
    assert jobs.states() == {"a": "output", "b": "output", "c": "failed", "b_2": "failed"}
    assert len(jobs.batches) == 2
    assert len({batch.order.input_file_id for batch in jobs.batches}) == 2
    assert jobs.files("output/a") == {"input.jsonl", "output.jsonl", "job.json"}
    assert jobs.read("output/a/input.jsonl") == prompt_line("1", "one") + prompt_line("2", "two")
    first, second = jobs.read("output/a/output.jsonl").splitlines()
    assert ("answer to one" in first, "answer to two" in second) == (True, True)
    assert jobs.read("output/b/result.txt") == "answer to a prompt"
    assert jobs.files("failed/c") == {"input.jsonl", "error.txt"}
    assert jobs.read("failed/b_2/input.jsonl") == prompt_line("1", "a second job b")
    assert "another job of this name" in jobs.read("failed/b_2/error.txt")
    assert jobs.files("input/writing") == set()
