"""Inputs and folders that cannot be used: nothing is lost, and the reason is written beside the input."""

import errno
import gzip
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batchwright.contracts.terms import BatchStatus
from batchwright.starter.client import Client
from batchwright.starter.folder.input_states import FolderError, InputFolder
from tests.unit.starter.cli import LINE, run_now
from tests.unit.starter.folder.inbox import Inbox, prompt_line

_NOBODY = 65534


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"a,b\n1,2\n", "Must be .jsonl"),
        (b"\xff\xfe{\x00", "UTF-16"),
        (b"PK\x03\x04", "compressed with zip"),
        (gzip.compress(LINE.encode())[:-3], "cannot be expanded: the file ends too early"),
    ],
    ids=["empty", "csv", "utf-16", "zip", "cut gzip"],
)
def test_a_file_that_is_no_jsonl_is_moved_to_failed_with_the_reason(
    inbox: Inbox, content: bytes, reason: str
) -> None:
    inbox.drop("a.jsonl", content)
    with inbox.runner() as runner:
        assert runner.round()
    assert inbox.states() == {"a": "failed"}
    assert reason in inbox.read("failed/a/error.txt")
    assert (inbox.path / "failed" / "a" / "input.jsonl").read_bytes() == content
    assert inbox.batches == []
    assert inbox.cli.api.storage.objects == {}


def test_a_wrong_window_is_refused_and_moves_no_input(inbox: Inbox) -> None:
    inbox.submit("a", input_jsonl=LINE)
    ended = inbox.cli.run("folder", str(inbox.path), "--once", "--window", "soon")
    assert (ended.exit_code, "--window 'soon' is not a whole number" in ended.stderr) == (3, True)
    assert inbox.states() == {"a": "input/ready"}


def test_a_second_file_of_a_name_is_moved_to_failed_and_changes_nothing_of_the_first(inbox: Inbox) -> None:
    with inbox.runner() as runner:
        for number in (1, 2, 3):
            inbox.drop("a.jsonl", prompt_line("1", f"input {number}"))
            runner.round()
        inbox.submit("a", input_jsonl=prompt_line("1", "input 4"))
        runner.round()
        inbox.answer()
        runner.round()
        inbox.drop("a.jsonl", prompt_line("1", "input 5"))
        runner.round()
    names = {f"a_{number}": "failed" for number in (2, 3, 4, 5)}
    assert inbox.states() == {"a": "output", **names}
    assert len(inbox.batches) == 1
    assert "answer to input 1" in inbox.read("output/a/output.jsonl")
    for number in (2, 3, 4, 5):
        assert f"input {number}" in inbox.read(f"failed/a_{number}/input.jsonl")
    assert "in processing." in inbox.read("failed/a_2/error.txt")
    assert "in output." in inbox.read("failed/a_5/error.txt")


def test_a_file_that_cannot_be_refused_yet_is_not_replaced_by_the_next_one_of_its_name(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with inbox.runner() as runner:
        inbox.drop("a.jsonl", prompt_line("1", "input 1"))
        runner.round()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            for number in (2, 3):
                inbox.drop("a.jsonl", prompt_line("1", f"input {number}"))
                runner.round()
        assert runner.has_failures
    assert "input 3" in inbox.read("a.jsonl")
    assert "a.jsonl: cannot be taken: an earlier file of this name could not be moved yet" in inbox.said
    with inbox.runner() as runner:
        runner.round()
    assert inbox.states() == {"a": "processing", "a_2": "failed", "a_3": "failed"}
    for number in (2, 3):
        assert f"input {number}" in inbox.read(f"failed/a_{number}/input.jsonl")
    assert inbox.files("input/writing") == set()


def test_a_file_that_cannot_be_queued_yet_is_not_replaced_by_one_that_becomes_the_same_input(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwritable(folder: InputFolder, staged: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with inbox.runner() as runner:
        inbox.drop("input/ready/a", prompt_line("1", "input 1"))
        inbox.drop("input/ready/a.jsonl", prompt_line("1", "input 2"))
        with monkeypatch.context() as patch:
            patch.setattr(InputFolder, "publish", unwritable)
            for _ in range(3):
                runner.round()
        assert "input 2" in inbox.read("input/ready/a.jsonl")
        runner.round()
        runner.round()
    assert inbox.states() == {"a": "processing", "a_2": "failed"}
    assert "input 1" in inbox.read("processing/a/input.jsonl")
    assert "input 2" in inbox.read("failed/a_2/input.jsonl")


def test_a_file_that_grows_while_it_is_uploaded_is_moved_to_failed(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox.drop("a.jsonl")
    path = inbox.path / "processing" / "a" / "input.jsonl"
    upload = Client.upload

    def slow(client: Client, file: object, name: str, **options: object) -> object:
        uploaded = upload(client, file, name, **options)  # pyright: ignore[reportArgumentType]
        with path.open("a") as growing:
            growing.write(LINE)
        return uploaded

    with monkeypatch.context() as patch, inbox.runner() as runner:
        patch.setattr(Client, "upload", slow)
        assert runner.round()
    assert "changed while it was read" in inbox.read("failed/a/error.txt")
    assert inbox.read("failed/a/input.jsonl") == 2 * LINE
    assert inbox.batches == []
    assert inbox.cli.api.storage.objects == {}
    (inbox.path / "failed" / "a").rename(inbox.path / "input" / "ready" / "a")
    with inbox.runner() as runner:
        runner.round()
    assert inbox.input_of(inbox.batches[0]) == 2 * LINE.encode()


def test_results_of_an_input_that_grew_later_are_not_taken_for_those_of_all_lines(inbox: Inbox) -> None:
    inbox.drop("a.jsonl", prompt_line("1", "one"))
    with inbox.runner() as runner:
        runner.round()
        with (inbox.path / "processing" / "a" / "input.jsonl").open("a") as growing:
            growing.write(prompt_line("2", "two"))
        inbox.answer()
        runner.round()
    assert f"first {len(prompt_line('1', 'one'))} bytes" in inbox.read("failed/a/error.txt")
    assert "answer to one" in inbox.read("failed/a/output.jsonl")


@contextmanager
def as_another_user() -> Generator[None]:
    """Context manager that, if the tests run as root, runs them as a user without access to others' files."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_that_may_not_be_read_is_moved_to_failed(inbox: Inbox) -> None:
    with inbox.runner() as runner:
        for folder in ("input/writing", "input/ready", "processing", "output", "failed", ""):
            (inbox.path / folder).chmod(0o777)
        inbox.drop("a.jsonl").chmod(0)
        with as_another_user():
            runner.round()
    assert inbox.states() == {"a": "failed"}
    assert inbox.read("failed/a/error.txt") == "input.jsonl cannot be read: Permission denied.\n"


def test_inputs_that_may_not_be_moved_stay_where_they_are_and_do_not_stop_others(inbox: Inbox) -> None:
    with inbox.runner() as runner:
        for folder in ("input/writing", "input/ready", "processing", "output", "failed", ""):
            (inbox.path / folder).chmod(0o777)
        inbox.submit("a", input_jsonl=LINE)
        inbox.submit("b", input_jsonl=LINE)
        if os.geteuid() == 0:
            os.chown(inbox.path / "input" / "ready" / "b", _NOBODY, _NOBODY)
            (inbox.path / "input" / "ready" / "b").chmod(0o755)
        (inbox.path / "input" / "ready" / "a").chmod(0o555)
        with as_another_user():
            for _ in range(3):
                assert not runner.round()
        assert inbox.states() == {"a": "input/ready", "b": "processing"}
        inbox.answer()
        with as_another_user():
            assert runner.round()
        assert runner.has_failures
    assert [line for line in inbox.said if line.startswith("a")] == [
        "a: cannot be moved to processing: Permission denied"
    ]


def test_a_postponed_input_that_the_user_removes_is_no_failure(inbox: Inbox) -> None:
    run_now(inbox.cli.api.database.quotas.change("default", {"stored_bytes": len(LINE)}, datetime.now(UTC)))
    inbox.submit("a", input_jsonl="".join(LINE.replace('"a"', f'"{number}"') for number in range(9)))
    with inbox.runner() as runner:
        runner.round()
        assert runner.has_failures
        shutil.rmtree(inbox.path / inbox.states()["a"] / "a")
        assert runner.round()
        assert not runner.has_failures


def test_an_input_larger_than_the_storage_that_is_left_waits_and_does_not_stop_smaller_ones(
    inbox: Inbox,
) -> None:
    quotas = inbox.cli.api.database.quotas
    run_now(quotas.change("default", {"stored_bytes": 5 * len(LINE)}, datetime.now(UTC)))
    inbox.submit("a", input_jsonl="".join(LINE.replace('"a"', f'"{number}"') for number in range(9)))
    inbox.submit("b", input_jsonl=LINE)
    with inbox.runner() as runner:
        runner.round()
        assert not runner.round()
        assert inbox.states() == {"a": "processing", "b": "processing"}
        assert len(inbox.batches) == 1
        [said] = [line for line in inbox.said if line.startswith("a: ")]
        assert said.startswith("a: Too many bytes are stored: of at most")
    run_now(quotas.change("default", {"stored_bytes": None}, datetime.now(UTC)))
    with inbox.runner() as runner:
        runner.round()
    assert len(inbox.batches) == 2


def test_inputs_that_exceed_the_storage_that_is_left_are_not_all_uploaded_to_be_refused(inbox: Inbox) -> None:
    quotas = inbox.cli.api.database.quotas
    run_now(quotas.change("default", {"stored_bytes": 5 * len(LINE)}, datetime.now(UTC)))
    for name in "abc":
        inbox.submit(name, input_jsonl="".join(LINE.replace('"a"', f'"{number}"') for number in range(9)))
    inbox.submit("d", input_jsonl=LINE)
    with inbox.runner() as runner:
        runner.round()
        runner.round()
    assert inbox.states() == {"a": "processing", "b": "input/ready", "c": "input/ready", "d": "processing"}
    assert len(inbox.batches) == 1


def test_links_and_pipes_are_not_followed(inbox: Inbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text(LINE)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "prompt.txt").write_text("hi")
    with inbox.runner() as runner:
        (inbox.path / "link.jsonl").symlink_to(secret)
        (inbox.path / "input" / "ready" / "linked").symlink_to(elsewhere)
        inbox.submit("inside")
        (inbox.path / "input" / "ready" / "inside" / "prompt.txt").symlink_to(secret)
        os.mkfifo(inbox.path / "pipe.jsonl")
        assert runner.round()
        assert runner.round()
    assert inbox.states() == dict.fromkeys(("link", "linked", "inside", "pipe"), "failed")
    for name in ("link", "linked"):
        assert (
            inbox.read(f"failed/{name}/error.txt") == "input.jsonl cannot be read: it is a symbolic link.\n"
        )
    assert "prompt.txt cannot be read: it is a symbolic link." in inbox.read("failed/inside/error.txt")
    assert "it is not a regular file" in inbox.read("failed/pipe/error.txt")
    assert {path.name for path in elsewhere.iterdir()} == {"prompt.txt"}
    assert inbox.batches == []


def test_results_are_not_written_through_a_link(inbox: Inbox, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    inbox.drop("a.jsonl")
    with inbox.runner() as runner:
        runner.round()
        for name in ("output.jsonl", "output.jsonl.part"):
            (inbox.path / "processing" / "a" / name).symlink_to(target)
        inbox.answer()
        runner.round()
    assert target.read_text() == "mine"
    assert not (inbox.path / "output" / "a" / "output.jsonl").is_symlink()
    assert "answer to hi" in inbox.read("output/a/output.jsonl")


def test_a_state_that_is_elsewhere_is_not_used(inbox: Inbox, tmp_path: Path) -> None:
    inbox.path.mkdir()
    (inbox.path / "output").symlink_to(tmp_path)
    with pytest.raises(FolderError, match="output cannot be used"), InputFolder(inbox.path):
        pass


def test_on_a_full_disk_the_input_fails_and_continues_with_its_batch_when_it_is_queued_again(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox.drop("a.jsonl")
    sync = os.fsync

    def full(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("output.jsonl.part"):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(fd)

    with inbox.runner() as runner:
        runner.round()
        inbox.answer()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            runner.round()
    assert inbox.files("failed/a") == {"input.jsonl", "batch.json", "error.txt"}
    assert "output.jsonl cannot be written: No space left on device." in inbox.read("failed/a/error.txt")
    (inbox.path / "failed" / "a").rename(inbox.path / "input" / "ready" / "a")
    with inbox.runner() as runner:
        assert not runner.round()
        assert runner.round()
    assert inbox.states() == {"a": "output"}
    assert inbox.files("output/a") == {"input.jsonl", "output.jsonl", "batch.json"}
    assert "answer to hi" in inbox.read("output/a/output.jsonl")
    assert len(inbox.batches) == 1


def test_results_of_an_earlier_attempt_are_not_taken_for_those_of_this_one(inbox: Inbox) -> None:
    old = {"output_jsonl": "old\n", "errors_jsonl": "old\n", "result_txt": "old", "error_txt": "old\n"}
    inbox.submit("answered", input_jsonl=LINE, **old)
    with inbox.runner() as runner:
        runner.round()
        inbox.answer()
        runner.round()
        inbox.submit("refused", prompt_txt="hi", **old)
        runner.round()
        inbox.fail(BatchStatus.COMPLETED, error=b"new\n")
        runner.round()
        inbox.submit("expired", prompt_txt="hi", **old)
        runner.round()
        inbox.fail(BatchStatus.EXPIRED)
        runner.round()
    assert inbox.files("output/answered") == {"input.jsonl", "output.jsonl", "batch.json"}
    request = {"prompt.txt", "input.jsonl", "batch.json", "error.txt"}
    assert inbox.files("failed/refused") == {*request, "errors.jsonl"}
    assert inbox.read("failed/refused/errors.jsonl") == "new\n"
    assert inbox.files("failed/expired") == request
    assert "has ended as expired" in inbox.read("failed/expired/error.txt")


def test_if_not_even_the_reason_can_be_written_the_input_stays_and_is_tried_again(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    inbox.drop("a.jsonl")
    with inbox.runner() as runner:
        runner.round()
        inbox.answer()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            for _ in range(3):
                assert runner.round()
        assert runner.has_failures
    assert inbox.states() == {"a": "processing"}
    assert len([line for line in inbox.said if "No space left" in line]) == 1
    with inbox.runner() as runner:
        runner.round()
        runner.round()
    assert inbox.states() == {"a": "output"}
    assert len(inbox.batches) == 1


def test_an_input_gets_no_results_of_a_batch_that_is_not_its_own(inbox: Inbox) -> None:
    other = inbox.cli.submitted(inbox.path.parent).order.batch_id
    inbox.cli.end(other, output=b"secret\n")
    record = (
        f'{{"key": "mine", "endpoint": "/v1/responses", "window": "24h", "bytes": 1, "batch": "{other}"}}'
    )
    inbox.submit("a", input_jsonl=LINE, batch_json=record)
    inbox.submit("b", input_jsonl=LINE, batch_json="[]")
    with inbox.runner() as runner:
        runner.round()
        runner.round()
    assert inbox.states() == {"a": "failed", "b": "failed"}
    assert f"{other} is not the batch of this input" in inbox.read("failed/a/error.txt")
    assert "output.jsonl" not in inbox.files("failed/a")
    assert "was not written by Batchwright" in inbox.read("failed/b/error.txt")


def test_names_are_shown_without_control_characters(inbox: Inbox) -> None:
    inbox.path.mkdir()
    with open(os.fsencode(inbox.path) + b"/\x1b[31m\xff\n.jsonl", "w") as file:
        file.write(LINE)
    with inbox.runner() as runner:
        runner.round()
        inbox.answer()
        runner.round()
    assert {line.split(":")[0] for line in inbox.said} == {"?[31m??"}
    [batch] = inbox.batches
    assert inbox.input_of(batch) == LINE.encode()
