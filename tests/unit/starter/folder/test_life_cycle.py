"""The life cycle of an input: the directory that it is in, its files there, and the messages to the user."""

import gzip
import json
import os
import shutil
import signal
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest

from batchwright.api.services.batches import progress_events as batch_events
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.terms import BatchStatus, ValidationError
from batchwright.rules.ids import request_id
from batchwright.rules.input.compression import zstd
from batchwright.rules.results.output_lines import error_line
from batchwright.starter import batch_groups
from batchwright.starter.client import Client
from batchwright.starter.client_errors import ClientError
from batchwright.starter.folder import dropped_files, folder_runner
from batchwright.starter.folder.dropped_files import DroppedFiles
from batchwright.starter.folder.input_states import FolderError, InputFolder, State
from batchwright.temporal.errors import TemporalUnavailable
from tests.unit.starter.cli import LATER, LINE, run_now
from tests.unit.starter.folder.inbox import STATES, Inbox, prompt_line


def test_a_dropped_file_is_run_and_its_results_are_written_beside_it(inbox: Inbox) -> None:
    inbox.drop("rivers.jsonl", prompt_line("a", "hi"))
    with inbox.runner() as runner:
        assert not runner.round()
        assert inbox.states() == {"rivers": "processing"}
        assert not runner.round()
        inbox.answer()
        assert runner.round()
    assert inbox.states() == {"rivers": "output"}
    assert inbox.files("output/rivers") == {"input.jsonl", "output.jsonl", "batch.json"}
    assert inbox.read("output/rivers/input.jsonl") == prompt_line("a", "hi")
    assert "answer to hi" in inbox.read("output/rivers/output.jsonl")
    assert not runner.has_failures


@pytest.mark.parametrize(
    ("ending", "pack"), [("jsonl.gz", gzip.compress), ("jsonl.zst", zstd.compress)], ids=["gzip", "zstd"]
)
def test_a_compressed_file_is_run_and_kept_as_it_is(
    inbox: Inbox, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(prompt_line("a", "hi").encode())
    inbox.drop(f"rivers.{ending}", packed)
    with inbox.runner() as runner:
        runner.round()
        inbox.answer()
        assert runner.round()
    assert inbox.states() == {"rivers": "output"}
    assert (inbox.path / "output" / "rivers" / "input.jsonl").read_bytes() == packed
    assert "answer to hi" in inbox.read("output/rivers/output.jsonl")


def test_an_input_is_in_one_state_at_a_time_and_an_unknown_one_in_none(inbox: Inbox) -> None:
    with InputFolder(inbox.path) as folder:
        assert {state.value for state in State} == {"input/writing", *STATES}
        assert folder.state_of("a") is None
        inbox.submit("a", prompt_txt="hi")
        assert (folder.state_of("a"), inbox.states()) == (State.READY, {"a": "input/ready"})
        folder.move("a", State.READY, State.PROCESSING)
        assert (folder.state_of("a"), inbox.states()) == (State.PROCESSING, {"a": "processing"})
        folder.move("a", State.PROCESSING, State.OUTPUT)
        assert (folder.state_of("a"), inbox.states()) == (State.OUTPUT, {"a": "output"})
        inbox.submit("a", prompt_txt="another of this name")
        assert folder.state_of("a") is State.OUTPUT  # another input does not hide how this one ended


def test_an_input_that_is_being_written_is_not_read(inbox: Inbox) -> None:
    staging = inbox.path / "input" / "writing" / "a"
    staging.mkdir(parents=True)
    (staging / "prompt.txt").write_text("half a pro")
    with inbox.runner() as runner:
        assert runner.round()
        assert inbox.batches == []
        (staging / "prompt.txt").write_text("half a prompt is not read")
        staging.rename(inbox.path / "input" / "ready" / "a")
        runner.round()
    [batch] = inbox.batches
    assert b"half a prompt is not read" in inbox.input_of(batch)


def test_inputs_are_started_by_name_with_numbers_by_their_value(inbox: Inbox) -> None:
    names = ["1736700000_900_9", "1736700000_900_10", "1736700000_1000_0", "1736700001_5_0"]
    for name in reversed(names):
        inbox.submit(name, prompt_txt=name)
    with inbox.runner() as runner:
        runner.round()
    started = [json.loads(inbox.input_of(batch))["body"]["messages"][0]["content"] for batch in inbox.batches]
    assert started == names


def test_an_input_waits_until_the_api_accepts_it_and_is_uploaded_once(inbox: Inbox) -> None:
    inbox.submit("a", input_jsonl=LINE)
    inbox.submit("b", input_jsonl=LINE)
    inbox.cli.api.temporal.failing = TemporalUnavailable("away")
    with inbox.runner() as runner:
        for _ in range(3):
            assert not runner.round()
        assert inbox.states() == {"a": "processing", "b": "input/ready"}
        assert len(inbox.cli.api.storage.objects) == 1
        assert len(inbox.said) == 1
        inbox.cli.api.temporal.failing = None
        runner.round()
    assert len(inbox.batches) == 2
    assert "The API accepts requests again." in inbox.said


def test_an_input_whose_upload_is_too_slow_for_the_api_waits(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox.submit("a", input_jsonl=LINE)
    send = httpx.Client.send

    def slow(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        if request.url.path != "/v1/files":
            return send(client, request, **options)
        error = {"message": "The body did not come in time."}
        return httpx.Response(HTTPStatus.REQUEST_TIMEOUT, json={"error": error}, request=request)

    with inbox.runner() as runner:
        with monkeypatch.context() as patch:
            patch.setattr(httpx.Client, "send", slow)
            assert not runner.round()
        assert inbox.states() == {"a": "processing"}
        assert inbox.said == ["The body did not come in time."]
        assert not runner.round()
        assert not runner.has_failures
    assert len(inbox.batches) == 1


def test_each_change_of_a_batch_is_one_line(inbox: Inbox) -> None:
    inbox.drop("a.jsonl")
    with inbox.runner() as runner:
        runner.round()
        runner.round()
        runner.round()
        inbox.cli.begin(inbox.batches[0], ModelCounts(model="llama", lines=1))
        runner.round()
        runner.round()
        inbox.answer()
        runner.round()
    batch_id = inbox.batches[0].order.batch_id
    assert [line.split(";")[0] for line in inbox.said] == [
        f"a: created {batch_id}",
        "a: validating",
        "a: 0 of 1 lines, in_progress",
        "a: 1 of 1 lines, completed",
    ]


def test_a_batch_that_fails_moves_its_input_to_failed_with_every_error(inbox: Inbox) -> None:
    inbox.drop("a.jsonl")
    with inbox.runner() as runner:
        runner.round()
        errors = [ValidationError(code="invalid_url", message="Bad.", line=number) for number in (1, 12)]
        ends, batch_id = inbox.cli.api.database.batch_ends, inbox.batches[0].order.batch_id
        run_now(ends.fail_validation("default", batch_id, errors=errors, total=12, at=LATER))
        assert runner.round()
        assert runner.has_failures
    assert inbox.states() == {"a": "failed"}
    assert inbox.read("failed/a/input.jsonl") == LINE
    assert inbox.read("failed/a/error.txt").splitlines() == [
        f"{batch_id} has ended as failed.",
        "line 1: Bad. (invalid_url)",
        "line 12: Bad. (invalid_url)",
    ]


def test_results_of_a_batch_that_ends_early_are_beside_the_reason(inbox: Inbox) -> None:
    inbox.drop("a.jsonl")
    with inbox.runner() as runner:
        runner.round()
        inbox.cli.end(inbox.batches[0].order.batch_id, BatchStatus.EXPIRED, output=b"{}\n", error=b"{ }\n")
        runner.round()
    assert "has ended as expired." in inbox.read("failed/a/error.txt")
    assert (inbox.read("failed/a/output.jsonl"), inbox.read("failed/a/errors.jsonl")) == ("{}\n", "{ }\n")


def test_an_input_that_is_queued_again_takes_the_batch_that_resumes_its_own_and_none_that_retries_lines(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_groups, "_PAGE", 1)
    answered = prompt_line("1", "one")
    inbox.drop("a.jsonl", answered + prompt_line("2", "two"))
    with inbox.runner() as runner:
        runner.round()
        first = inbox.batches[0].order.batch_id
        expired = error_line(request_id(first, len(answered)), "2", LineCode.BATCH_EXPIRED, "late") + b"\n"
        inbox.cli.end(first, BatchStatus.EXPIRED, output=b"{}\n", error=expired)
        runner.round()
        assert inbox.states() == {"a": "failed"}
        resumed = inbox.cli.run("resume", first)
        retried = inbox.cli.run("retry", first)
        assert (resumed.exit_code, retried.exit_code) == (0, 0)
        (inbox.path / "failed" / "a").rename(inbox.path / "input" / "ready" / "a")
        assert not runner.round()
        _, resuming, retrying = (batch.order.batch_id for batch in inbox.batches)
        assert inbox.said[-1] == f"a: continues with {resuming}"
        inbox.answer()
        assert runner.round()
    assert inbox.states() == {"a": "output"}
    assert len(inbox.read("output/a/output.jsonl").splitlines()) == 2
    assert inbox.files("output/a") == {"input.jsonl", "output.jsonl", "batch.json"}
    assert json.loads(inbox.read("output/a/batch.json"))["batch"] == resuming
    assert len(inbox.input_of(inbox.cli.row(retrying)).splitlines()) == 1


def test_inputs_that_have_ended_stay_until_a_user_removes_them(inbox: Inbox) -> None:
    inbox.drop("a.jsonl")
    with inbox.runner() as runner:
        runner.round()
        inbox.answer()
        for _ in range(3):
            runner.round()
        assert inbox.states() == {"a": "output"}
        shutil.rmtree(inbox.path / "output" / "a")
        inbox.drop("a.jsonl")
        runner.round()
        assert inbox.states() == {"a": "processing"}
    assert len(inbox.batches) == 2


def test_a_running_input_that_a_user_removes_is_forgotten(inbox: Inbox) -> None:
    inbox.drop("a.jsonl")
    with inbox.runner() as runner:
        runner.round()
        shutil.rmtree(inbox.path / "processing" / "a")
        assert runner.round()
    assert inbox.states() == {}


def test_a_file_is_taken_when_it_has_not_changed_for_a_while(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropped_files, "COMPLETE_AFTER_SECONDS", 3.0)
    now = 100.0
    path = inbox.drop("a.jsonl", "{")
    (inbox.path / ".hidden.jsonl").touch()
    (inbox.path / "b.jsonl.part").touch()
    (inbox.path / "notes.txt").touch()
    with InputFolder(inbox.path) as folder:
        dropped = DroppedFiles(folder, inbox.said.append, clock=lambda: now)
        assert dropped.queue_complete() == 1
        now += 2.9
        assert dropped.queue_complete() == 1
        path.write_text(LINE)
        now += 2.9
        assert dropped.queue_complete() == 1
        now += 2.9
        assert dropped.queue_complete() == 1
        assert inbox.states() == {}
        now += 0.2
        assert dropped.queue_complete() == 0
    assert inbox.states() == {"a": "input/ready"}
    assert inbox.read("input/ready/a/input.jsonl") == LINE
    assert {".hidden.jsonl", "b.jsonl.part", "notes.txt"} < inbox.files(".")


def test_a_file_among_the_queued_inputs_is_an_input_too(inbox: Inbox) -> None:
    (inbox.path / "input" / "ready").mkdir(parents=True)
    inbox.drop("input/ready/a.jsonl")
    with inbox.runner() as runner:
        runner.round()
    assert inbox.states() == {"a": "processing"}


def test_a_missing_folder_is_created_unless_the_command_runs_once(inbox: Inbox, tmp_path: Path) -> None:
    typo = tmp_path / "typo"
    ended = inbox.cli.run("folder", str(typo), "--once")
    assert (ended.exit_code, typo.exists()) == (3, False)
    assert ended.stderr == f"{typo} does not exist, so it has no inputs. Check the path, or create it.\n"
    with InputFolder(typo):
        assert typo.is_dir()


def test_a_folder_has_one_process_at_a_time(inbox: Inbox) -> None:
    with inbox.runner():
        with pytest.raises(FolderError, match="Another `batchwright folder` uses"), InputFolder(inbox.path):
            pass
        ended = inbox.cli.run("folder", str(inbox.path), "--once")
        assert (ended.exit_code, "Another `batchwright folder` uses" in ended.stderr) == (3, True)
    with inbox.runner():
        pass


def test_a_round_polls_and_starts_a_bounded_number_of_inputs_each_in_turn(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        inbox.submit(f"input_{number}", input_jsonl=LINE)
    monkeypatch.setattr(folder_runner, "_CALLS_PER_ROUND", 2)
    polled: list[str] = []
    get = Client.batch

    def counted(client: Client, batch_id: str) -> object:
        polled.append(batch_id)
        return get(client, batch_id)

    monkeypatch.setattr(Client, "batch", counted)
    with inbox.runner() as runner:
        runner.round()
        assert (len(polled), len(inbox.batches)) == (0, 2)
        runner.round()
        runner.round()
        runner.round()
    assert (len(polled), len(inbox.batches)) == (6, 3)
    assert set(polled[2:5]) == {batch.order.batch_id for batch in inbox.batches}


def test_a_key_that_is_refused_ends_the_command_and_fails_no_input(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox.drop("a.jsonl")

    def refused(*_: object, **options: object) -> object:
        raise ClientError("no such key", is_rejected=True, status=HTTPStatus.UNAUTHORIZED)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "create", refused)
        ended = inbox.cli.run("folder", str(inbox.path), "--once")
    assert (ended.exit_code, ended.stderr) == (3, "no such key\n")
    assert inbox.states() == {"a": "processing"}
    with inbox.runner() as runner:
        runner.round()
    assert len(inbox.batches) == 1


def test_an_internal_error_of_the_api_delays_only_its_own_input(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox.submit("a", input_jsonl=LINE)
    inbox.submit("b", input_jsonl=LINE)
    upload = Client.upload

    def broken(client: Client, file: object, name: str, **options: object) -> object:
        if name == "a.jsonl":
            raise ClientError("broken", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        return upload(client, file, name, **options)  # pyright: ignore[reportArgumentType]

    with monkeypatch.context() as patch, inbox.runner() as runner:
        patch.setattr(Client, "upload", broken)
        runner.round()
        assert not runner.round()
        assert len(inbox.batches) == 1
    assert [line for line in inbox.said if line.startswith("a")] == ["a: broken"]
    with inbox.runner() as runner:
        runner.round()
    assert len(inbox.batches) == 2


def test_the_command_runs_what_is_there_and_ends(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_events, "MAX_LISTENERS", 0)
    inbox.drop("a.jsonl")
    inbox.drop("b.jsonl", "no JSON")

    def answer(seconds: float) -> None:
        inbox.answer()

    monkeypatch.setattr("batchwright.starter.folder.folder_runner.time.sleep", answer)
    ended = inbox.cli.run("folder", str(inbox.path), "--once", COLUMNS="80", TTY_COMPATIBLE="1", TERM="dumb")
    assert ended.exit_code == 1
    assert "a: 1 of 1 lines, completed" in ended.stdout
    assert "b: failed: " in ended.stdout
    assert max(len(line) for line in ended.stdout.splitlines()) <= 80
    (inbox.path / "failed" / "b").rename(inbox.path / "kept")
    assert inbox.cli.run("folder", str(inbox.path), "--once").exit_code == 0


def test_sigterm_ends_the_command_in_order(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox.drop("a.jsonl")

    def stop(seconds: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("batchwright.starter.folder.folder_runner.time.sleep", stop)
    before = signal.getsignal(signal.SIGTERM)
    ended = inbox.cli.run("folder", str(inbox.path))
    assert (ended.exit_code, ended.stdout.splitlines()[-1]) == (
        0,
        "Stopped; 1 running input continues at the API.",
    )
    assert signal.getsignal(signal.SIGTERM) is before
    assert inbox.states() == {"a": "processing"}
    assert inbox.cli.run("folder", str(inbox.path), "--once").exit_code == 2
