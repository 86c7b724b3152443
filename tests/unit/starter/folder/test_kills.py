"""If a process is killed after any of its steps, the next process completes the same inputs."""

import os
import shutil
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import httpx
import pytest

from tests.unit.starter.folder.inbox import STATES, Inbox, prompt_line

_MOST_ROUNDS = 5
# Each step after which something is different, in the folder or at the API. A kill loses nothing that was
# written, unlike a crash of the machine. So fsync is not one of them.
_STEPS = [
    *((os, name) for name in ("mkdir", "rename", "rmdir")),
    (httpx.Client, "send"),
]


class _Killed(BaseException):
    """An exception that ends the program as a kill would, because none of the program's code handles it."""


def _kill_after(step: int, patch: pytest.MonkeyPatch) -> None:
    """Kill the program in this thread after step number `step`. If `step` is 0, it is never killed."""
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


def test_each_input_is_run_once_whichever_step_is_the_last_one_of_a_killed_process(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(inbox)
    kills = 0
    while was_killed(inbox, kills + 1, monkeypatch):
        kills += 1
        assert set(inbox.states().values()) <= set(STATES)  # no input is in two of them
        assert not was_killed(inbox, 0, monkeypatch)
        check(inbox)
        prepare(inbox)
    check(inbox)
    assert kills > 30


def _do_nothing(fd: int) -> None:
    pass


def prepare(inbox: Inbox) -> None:
    """Prepare the next run: an API without data, and a folder with a file, a prompt, and a second file of the
    same name.
    """
    inbox.cli.api.clear()
    shutil.rmtree(inbox.path, ignore_errors=True)
    inbox.submit("b", prompt_txt="a prompt")
    (inbox.path / "input" / "ready" / "c").mkdir()
    (inbox.path / "input" / "ready" / "c" / "input.jsonl").write_text("no JSON")
    inbox.drop("a.jsonl", prompt_line("1", "one") + prompt_line("2", "two"))
    inbox.drop("b.jsonl", prompt_line("1", "a second input b"))


def was_killed(inbox: Inbox, after: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run the folder until all inputs have ended. Return True if it was killed after `after` steps."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _do_nothing)  # it would take much of the time
        _kill_after(after, patch)
        try:
            with inbox.runner() as runner:
                for _ in range(_MOST_ROUNDS):
                    if runner.round():
                        return False
                    inbox.answer()
        except _Killed:
            return True
    raise AssertionError(f"the inputs do not end: {inbox.states()}")


def check(inbox: Inbox) -> None:
    assert inbox.states() == {"a": "output", "b": "output", "c": "failed", "b_2": "failed"}
    assert len(inbox.batches) == 2
    assert len({batch.order.input_file_id for batch in inbox.batches}) == 2
    assert inbox.files("output/a") == {"input.jsonl", "output.jsonl", "batch.json"}
    assert inbox.read("output/a/input.jsonl") == prompt_line("1", "one") + prompt_line("2", "two")
    first, second = inbox.read("output/a/output.jsonl").splitlines()
    assert ("answer to one" in first, "answer to two" in second) == (True, True)
    assert inbox.read("output/b/result.txt") == "answer to a prompt"
    assert inbox.files("failed/c") == {"input.jsonl", "error.txt"}
    assert inbox.read("failed/b_2/input.jsonl") == prompt_line("1", "a second input b")
    assert "another input of this name" in inbox.read("failed/b_2/error.txt")
    assert inbox.files("input/writing") == set()
