"""Inputs and folders that cannot be used: nothing is lost, and the reason is written beside the input."""

import errno
import gzip
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchwright.contracts.terms import BatchStatus
from batchwright.starter.client import Client
from batchwright.starter.folder import prompts
from batchwright.starter.folder.errors import FolderError
from batchwright.starter.folder.job_batches import JobOptions
from batchwright.starter.folder.job_states import JobFolder
from tests.unit.starter.cli import LINE
from tests.unit.starter.folder.jobs import OPTIONS, Jobs, prompt_line

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
    jobs: Jobs, content: bytes, reason: str
) -> None:
    jobs.drop("a.jsonl", content)
    with jobs.runner() as runner:
        assert runner.round()
    assert jobs.states() == {"a": "failed"}
    assert reason in jobs.read("failed/a/error.txt")
    assert (jobs.path / "failed" / "a" / "input.jsonl").read_bytes() == content
    assert jobs.batches == []
    assert jobs.cli.api.storage.objects == {}


def test_a_second_file_of_a_name_is_moved_to_failed_and_changes_nothing_of_the_first(jobs: Jobs) -> None:
    with jobs.runner() as runner:
        for number in (1, 2, 3):
            jobs.drop("a.jsonl", prompt_line("1", f"input {number}"))
            runner.round()
        jobs.submit("a", input_jsonl=prompt_line("1", "input 4"))
        runner.round()
        jobs.answer()
        runner.round()
        jobs.drop("a.jsonl", prompt_line("1", "input 5"))
        runner.round()
    names = {f"a_{number}": "failed" for number in (2, 3, 4, 5)}
    assert jobs.states() == {"a": "output", **names}
    assert len(jobs.batches) == 1
    assert "answer to input 1" in jobs.read("output/a/output.jsonl")
    for number in (2, 3, 4, 5):
        assert f"input {number}" in jobs.read(f"failed/a_{number}/input.jsonl")
    assert "in processing." in jobs.read("failed/a_2/error.txt")
    assert "in output." in jobs.read("failed/a_5/error.txt")


def test_a_file_that_cannot_be_refused_yet_is_not_replaced_by_the_next_one_of_its_name(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with jobs.runner() as runner:
        jobs.drop("a.jsonl", prompt_line("1", "input 1"))
        runner.round()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            for number in (2, 3):
                jobs.drop("a.jsonl", prompt_line("1", f"input {number}"))
                runner.round()
        assert runner.has_failures
    assert "input 3" in jobs.read("a.jsonl")
    assert "a.jsonl: cannot be taken: an earlier file of this name could not be moved yet" in jobs.said
    with jobs.runner() as runner:
        runner.round()
    assert jobs.states() == {"a": "processing", "a_2": "failed", "a_3": "failed"}
    for number in (2, 3):
        assert f"input {number}" in jobs.read(f"failed/a_{number}/input.jsonl")
    assert jobs.files("input/writing") == set()


def test_a_file_that_cannot_be_queued_yet_is_not_replaced_by_one_that_becomes_the_same_job(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwritable(folder: JobFolder, staged: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with jobs.runner() as runner:
        jobs.drop("input/ready/a", prompt_line("1", "input 1"))
        jobs.drop("input/ready/a.jsonl", prompt_line("1", "input 2"))
        with monkeypatch.context() as patch:
            patch.setattr(JobFolder, "publish", unwritable)
            for _ in range(3):
                runner.round()
        assert "input 2" in jobs.read("input/ready/a.jsonl")
        runner.round()
        runner.round()
    assert jobs.states() == {"a": "processing", "a_2": "failed"}
    assert "input 1" in jobs.read("processing/a/input.jsonl")
    assert "input 2" in jobs.read("failed/a_2/input.jsonl")


def test_a_file_that_grows_while_it_is_uploaded_is_moved_to_failed(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.drop("a.jsonl")
    path = jobs.path / "processing" / "a" / "input.jsonl"
    upload = Client.upload

    def slow(client: Client, file: object, name: str, **options: object) -> object:
        uploaded = upload(client, file, name, **options)  # pyright: ignore[reportArgumentType]
        with path.open("a") as growing:
            growing.write(LINE)
        return uploaded

    with monkeypatch.context() as patch, jobs.runner() as runner:
        patch.setattr(Client, "upload", slow)
        assert runner.round()
    assert "changed while it was read" in jobs.read("failed/a/error.txt")
    assert jobs.read("failed/a/input.jsonl") == 2 * LINE
    assert jobs.batches == []
    assert jobs.cli.api.storage.objects == {}
    (jobs.path / "failed" / "a").rename(jobs.path / "input" / "ready" / "a")
    with jobs.runner() as runner:
        runner.round()
    assert jobs.input_of(jobs.batches[0]) == 2 * LINE.encode()


def test_results_of_an_input_that_grew_later_are_not_taken_for_those_of_all_lines(jobs: Jobs) -> None:
    jobs.drop("a.jsonl", prompt_line("1", "one"))
    with jobs.runner() as runner:
        runner.round()
        with (jobs.path / "processing" / "a" / "input.jsonl").open("a") as growing:
            growing.write(prompt_line("2", "two"))
        jobs.answer()
        runner.round()
    assert f"first {len(prompt_line('1', 'one'))} bytes" in jobs.read("failed/a/error.txt")
    assert "answer to one" in jobs.read("failed/a/output.jsonl")


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


def test_a_file_that_may_not_be_read_is_moved_to_failed(jobs: Jobs) -> None:
    with jobs.runner() as runner:
        for folder in ("input/writing", "input/ready", "processing", "output", "failed", ""):
            (jobs.path / folder).chmod(0o777)
        jobs.drop("a.jsonl").chmod(0)
        with as_another_user():
            runner.round()
    assert jobs.states() == {"a": "failed"}
    assert jobs.read("failed/a/error.txt") == "input.jsonl cannot be read: Permission denied.\n"


def test_jobs_that_may_not_be_moved_stay_where_they_are_and_do_not_stop_others(jobs: Jobs) -> None:
    with jobs.runner() as runner:
        for folder in ("input/writing", "input/ready", "processing", "output", "failed", ""):
            (jobs.path / folder).chmod(0o777)
        jobs.submit("a", input_jsonl=LINE)
        jobs.submit("b", input_jsonl=LINE)
        if os.geteuid() == 0:
            os.chown(jobs.path / "input" / "ready" / "b", _NOBODY, _NOBODY)
            (jobs.path / "input" / "ready" / "b").chmod(0o755)
        (jobs.path / "input" / "ready" / "a").chmod(0o555)
        with as_another_user():
            for _ in range(3):
                assert not runner.round()
        assert jobs.states() == {"a": "input/ready", "b": "processing"}
        jobs.answer()
        with as_another_user():
            assert runner.round()
        assert runner.has_failures
    assert [line for line in jobs.said if line.startswith("a")] == [
        "a: cannot be moved to processing: Permission denied"
    ]


def test_links_and_pipes_are_not_followed(jobs: Jobs, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text(LINE)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "prompt.txt").write_text("hi")
    with jobs.runner() as runner:
        (jobs.path / "link.jsonl").symlink_to(secret)
        (jobs.path / "input" / "ready" / "linked").symlink_to(elsewhere)
        jobs.submit("inside")
        (jobs.path / "input" / "ready" / "inside" / "prompt.txt").symlink_to(secret)
        os.mkfifo(jobs.path / "pipe.jsonl")
        assert runner.round()
        assert runner.round()
    assert jobs.states() == dict.fromkeys(("link", "linked", "inside", "pipe"), "failed")
    for name in ("link", "linked"):
        assert jobs.read(f"failed/{name}/error.txt") == "input.jsonl cannot be read: it is a symbolic link.\n"
    assert "prompt.txt cannot be read: it is a symbolic link." in jobs.read("failed/inside/error.txt")
    assert "it is not a regular file" in jobs.read("failed/pipe/error.txt")
    assert {path.name for path in elsewhere.iterdir()} == {"prompt.txt"}
    assert jobs.batches == []


def test_results_are_not_written_through_a_link(jobs: Jobs, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    jobs.drop("a.jsonl")
    with jobs.runner() as runner:
        runner.round()
        for name in ("output.jsonl", "output.jsonl.part"):
            (jobs.path / "processing" / "a" / name).symlink_to(target)
        jobs.answer()
        runner.round()
    assert target.read_text() == "mine"
    assert not (jobs.path / "output" / "a" / "output.jsonl").is_symlink()
    assert "answer to hi" in jobs.read("output/a/output.jsonl")


def test_a_state_that_is_elsewhere_is_not_used(jobs: Jobs, tmp_path: Path) -> None:
    jobs.path.mkdir()
    (jobs.path / "output").symlink_to(tmp_path)
    with pytest.raises(FolderError, match="output cannot be used"), JobFolder(jobs.path):
        pass


def test_on_a_full_disk_the_job_fails_and_continues_with_its_batch_when_it_is_queued_again(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.drop("a.jsonl")
    sync = os.fsync

    def full(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("output.jsonl.part"):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(fd)

    with jobs.runner() as runner:
        runner.round()
        jobs.answer()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            runner.round()
    assert jobs.files("failed/a") == {"input.jsonl", "job.json", "error.txt"}
    assert "output.jsonl cannot be written: No space left on device." in jobs.read("failed/a/error.txt")
    (jobs.path / "failed" / "a").rename(jobs.path / "input" / "ready" / "a")
    with jobs.runner() as runner:
        assert not runner.round()
        assert runner.round()
    assert jobs.states() == {"a": "output"}
    assert jobs.files("output/a") == {"input.jsonl", "output.jsonl", "job.json"}
    assert "answer to hi" in jobs.read("output/a/output.jsonl")
    assert len(jobs.batches) == 1


def test_results_of_an_earlier_attempt_are_not_taken_for_those_of_this_one(jobs: Jobs) -> None:
    old = {"output_jsonl": "old\n", "errors_jsonl": "old\n", "result_txt": "old", "error_txt": "old\n"}
    jobs.submit("answered", input_jsonl=LINE, **old)
    with jobs.runner() as runner:
        runner.round()
        jobs.answer()
        runner.round()
        jobs.submit("refused", prompt_txt="hi", **old)
        runner.round()
        jobs.fail(BatchStatus.COMPLETED, error=b"new\n")
        runner.round()
        jobs.submit("expired", prompt_txt="hi", **old)
        runner.round()
        jobs.fail(BatchStatus.EXPIRED)
        runner.round()
    assert jobs.files("output/answered") == {"input.jsonl", "output.jsonl", "job.json"}
    request = {"prompt.txt", "input.jsonl", "job.json", "error.txt"}
    assert jobs.files("failed/refused") == {*request, "errors.jsonl"}
    assert jobs.read("failed/refused/errors.jsonl") == "new\n"
    assert jobs.files("failed/expired") == request
    assert "has ended as expired" in jobs.read("failed/expired/error.txt")


def test_if_not_even_the_reason_can_be_written_the_job_stays_and_is_tried_again(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    jobs.drop("a.jsonl")
    with jobs.runner() as runner:
        runner.round()
        jobs.answer()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            for _ in range(3):
                assert runner.round()
        assert runner.has_failures
    assert jobs.states() == {"a": "processing"}
    assert len([line for line in jobs.said if "No space left" in line]) == 1
    with jobs.runner() as runner:
        runner.round()
        runner.round()
    assert jobs.states() == {"a": "output"}
    assert len(jobs.batches) == 1


def test_a_job_gets_no_results_of_a_batch_that_is_not_its_own(jobs: Jobs) -> None:
    other = jobs.cli.submitted(jobs.path.parent).order.batch_id
    jobs.cli.end(other, output=b"secret\n")
    record = (
        f'{{"key": "mine", "endpoint": "/v1/responses", "window": "24h", "bytes": 1, "batch": "{other}"}}'
    )
    jobs.submit("a", input_jsonl=LINE, job_json=record)
    jobs.submit("b", input_jsonl=LINE, job_json="[]")
    with jobs.runner() as runner:
        runner.round()
        runner.round()
    assert jobs.states() == {"a": "failed", "b": "failed"}
    assert f"{other} is not the batch of this job" in jobs.read("failed/a/error.txt")
    assert "output.jsonl" not in jobs.files("failed/a")
    assert "was not written by Batchwright" in jobs.read("failed/b/error.txt")


def test_names_are_shown_without_control_characters(jobs: Jobs) -> None:
    jobs.path.mkdir()
    with open(os.fsencode(jobs.path) + b"/\x1b[31m\xff\n.jsonl", "w") as file:
        file.write(LINE)
    with jobs.runner() as runner:
        runner.round()
        jobs.answer()
        runner.round()
    assert {line.split(":")[0] for line in jobs.said} == {"?[31m??"}
    [batch] = jobs.batches
    assert jobs.input_of(batch) == LINE.encode()


@pytest.mark.parametrize(
    ("prompt", "options", "reason"),
    [
        ("hi", JobOptions(OPTIONS.endpoint, "24h", None), "start `batchwright folder` with --model"),
        (" \n", OPTIONS, "prompt.txt is empty."),
        ("hi", JobOptions(OPTIONS.endpoint, "5x", "llama"), "A completion window is"),
    ],
    ids=["no model", "empty", "refused"],
)
def test_a_prompt_that_cannot_be_sent_is_moved_to_failed(
    jobs: Jobs, prompt: str, options: JobOptions, reason: str
) -> None:
    jobs.submit("a", prompt_txt=prompt)
    with jobs.runner(options) as runner:
        assert runner.round()
    assert jobs.states() == {"a": "failed"}
    assert reason in jobs.read("failed/a/error.txt")
    assert jobs.batches == []
    assert jobs.cli.api.storage.objects == {}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            b'{"response": {"status_code": 400, "body": {"error": {"message": "too long"}}}, "error": null}',
            "The backend answered with status 400: too long\n",
        ),
        (
            b'{"response": {"status_code": 500, "body": "out of memory"}, "error": null}',
            'The backend answered with status 500: "out of memory"\n',
        ),
        (
            b'{"response": null, "error": {"code": "model_not_found", "message": "No model."}}',
            "No model. (model_not_found)\n",
        ),
        (b"broken", "The request failed; see errors.jsonl.\n"),
    ],
    ids=["refused", "out of memory", "no model", "unreadable"],
)
def test_a_prompt_without_an_answer_fails_with_the_reason_of_its_line(
    jobs: Jobs, error: bytes, reason: str
) -> None:
    jobs.submit("a", prompt_txt="hi")
    with jobs.runner() as runner:
        runner.round()
        jobs.cli.end(jobs.batches[0].order.batch_id, error=error)
        runner.round()
    assert jobs.read("failed/a/error.txt") == reason
    assert jobs.files("failed/a") == {"prompt.txt", "input.jsonl", "errors.jsonl", "error.txt", "job.json"}


def test_an_answer_without_text_is_kept_beside_the_reason(jobs: Jobs) -> None:
    jobs.submit("a", prompt_txt="hi")
    with jobs.runner() as runner:
        runner.round()
        call = b'{"response": {"status_code": 200, "body": {"choices": [{"message": {"content": null}}]}}}'
        jobs.cli.end(jobs.batches[0].order.batch_id, output=call)
        runner.round()
    assert "has no text" in jobs.read("failed/a/error.txt")
    assert "choices" in jobs.read("failed/a/output.jsonl")


def test_of_an_output_that_is_too_large_for_an_answer_only_the_beginning_is_read(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "_MAX_ANSWER_BYTES", 1_000)
    jobs.submit("a", prompt_txt="hi", input_jsonl=LINE)
    with jobs.runner() as runner:
        runner.round()
        call = b'{"response": {"status_code": 200, "body": {"choices": [{"message": {"content": "ok"}}]}}}'
        jobs.cli.end(jobs.batches[0].order.batch_id, output=b" " * 1_000 + call)
        runner.round()
    assert "has no text" in jobs.read("failed/a/error.txt")
    assert "choices" in jobs.read("failed/a/output.jsonl")
