"""The life cycle of a job: the directory that it is in, its files there, and the messages to the user."""

import gzip
import json
import os
import shutil
import signal
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from batchwright.api.services.batches import progress_events as batch_events
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.terms import BatchStatus, Endpoint, ValidationError
from batchwright.rules.ids import request_id
from batchwright.rules.input.compression import zstd
from batchwright.rules.results.output_lines import error_line
from batchwright.starter import batch_groups
from batchwright.starter.client import Client, ClientError
from batchwright.starter.folder import dropped_files, job_runner
from batchwright.starter.folder.dropped_files import DroppedFiles
from batchwright.starter.folder.errors import FolderError
from batchwright.starter.folder.job_batches import JobOptions
from batchwright.starter.folder.job_states import JobFolder, State
from batchwright.temporal.errors import TemporalUnavailable
from tests.unit.starter.cli import LATER, LINE, run_now
from tests.unit.starter.folder.jobs import STATES, Jobs, prompt_line


def test_a_dropped_file_is_run_and_its_results_are_written_beside_it(jobs: Jobs) -> None:
    jobs.drop("rivers.jsonl", prompt_line("a", "hi"))
    with jobs.runner() as runner:
        assert not runner.round()
        assert jobs.states() == {"rivers": "processing"}
        assert not runner.round()
        jobs.answer()
        assert runner.round()
    assert jobs.states() == {"rivers": "output"}
    assert jobs.files("output/rivers") == {"input.jsonl", "output.jsonl", "job.json"}
    assert jobs.read("output/rivers/input.jsonl") == prompt_line("a", "hi")
    assert "answer to hi" in jobs.read("output/rivers/output.jsonl")
    assert not runner.has_failures


@pytest.mark.parametrize(
    ("ending", "pack"), [("jsonl.gz", gzip.compress), ("jsonl.zst", zstd.compress)], ids=["gzip", "zstd"]
)
def test_a_compressed_file_is_run_and_kept_as_it_is(
    jobs: Jobs, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(prompt_line("a", "hi").encode())
    jobs.drop(f"rivers.{ending}", packed)
    with jobs.runner() as runner:
        runner.round()
        jobs.answer()
        assert runner.round()
    assert jobs.states() == {"rivers": "output"}
    assert (jobs.path / "output" / "rivers" / "input.jsonl").read_bytes() == packed
    assert "answer to hi" in jobs.read("output/rivers/output.jsonl")


def test_a_job_is_in_one_state_at_a_time_and_an_unknown_one_in_none(jobs: Jobs) -> None:
    with JobFolder(jobs.path) as folder:
        assert {state.value for state in State} == {"input/writing", *STATES}
        assert folder.state_of("a") is None
        jobs.submit("a", prompt_txt="hi")
        assert (folder.state_of("a"), jobs.states()) == (State.READY, {"a": "input/ready"})
        folder.move("a", State.READY, State.PROCESSING)
        assert (folder.state_of("a"), jobs.states()) == (State.PROCESSING, {"a": "processing"})
        folder.move("a", State.PROCESSING, State.OUTPUT)
        assert (folder.state_of("a"), jobs.states()) == (State.OUTPUT, {"a": "output"})
        jobs.submit("a", prompt_txt="another of this name")
        assert folder.state_of("a") is State.OUTPUT  # another job does not hide how this one ended


def test_a_job_that_is_being_written_is_not_read(jobs: Jobs) -> None:
    staging = jobs.path / "input" / "writing" / "a"
    staging.mkdir(parents=True)
    (staging / "prompt.txt").write_text("half a pro")
    with jobs.runner() as runner:
        assert runner.round()
        assert jobs.batches == []
        (staging / "prompt.txt").write_text("half a prompt is not read")
        staging.rename(jobs.path / "input" / "ready" / "a")
        runner.round()
    [batch] = jobs.batches
    assert b"half a prompt is not read" in jobs.input_of(batch)


def test_a_prompt_becomes_a_batch_of_one_line_and_its_answer_a_text(jobs: Jobs) -> None:
    jobs.submit("1736700000_5_0", prompt_txt='Say "hi" in Türkçe.')
    with jobs.runner(JobOptions(Endpoint.EMBEDDINGS, "2h", "llama")) as runner:
        runner.round()
        [batch] = jobs.batches
        assert (batch.order.endpoint, batch.order.completion_window) == ("/v1/chat/completions", "2h")
        jobs.answer()
        runner.round()
    assert jobs.read("output/1736700000_5_0/prompt.txt") == 'Say "hi" in Türkçe.'
    assert jobs.read("output/1736700000_5_0/result.txt") == 'answer to Say "hi" in Türkçe.'


def test_jobs_are_started_by_name_with_numbers_by_their_value(jobs: Jobs) -> None:
    names = ["1736700000_900_9", "1736700000_900_10", "1736700000_1000_0", "1736700001_5_0"]
    for name in reversed(names):
        jobs.submit(name, prompt_txt=name)
    with jobs.runner() as runner:
        runner.round()
    started = [json.loads(jobs.input_of(batch))["body"]["messages"][0]["content"] for batch in jobs.batches]
    assert started == names


def test_a_job_waits_until_the_api_accepts_it_and_its_input_is_uploaded_once(jobs: Jobs) -> None:
    jobs.submit("a", input_jsonl=LINE)
    jobs.submit("b", input_jsonl=LINE)
    jobs.cli.api.temporal.failing = TemporalUnavailable("away")
    with jobs.runner() as runner:
        for _ in range(3):
            assert not runner.round()
        assert jobs.states() == {"a": "processing", "b": "input/ready"}
        assert len(jobs.cli.api.storage.objects) == 1
        assert len(jobs.said) == 1
        jobs.cli.api.temporal.failing = None
        runner.round()
    assert len(jobs.batches) == 2
    assert "The API accepts requests again." in jobs.said


def test_a_job_whose_upload_is_too_slow_for_the_api_waits(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.submit("a", input_jsonl=LINE)
    send = httpx.Client.send

    def slow(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        if request.url.path != "/v1/files":
            return send(client, request, **options)
        error = {"message": "The body did not come in time."}
        return httpx.Response(HTTPStatus.REQUEST_TIMEOUT, json={"error": error}, request=request)

    with jobs.runner() as runner:
        with monkeypatch.context() as patch:
            patch.setattr(httpx.Client, "send", slow)
            assert not runner.round()
        assert jobs.states() == {"a": "processing"}
        assert jobs.said == ["The body did not come in time."]
        assert not runner.round()
        assert not runner.has_failures
    assert len(jobs.batches) == 1


def test_each_change_of_a_batch_is_one_line(jobs: Jobs) -> None:
    jobs.drop("a.jsonl")
    with jobs.runner() as runner:
        runner.round()
        runner.round()
        runner.round()
        jobs.cli.begin(jobs.batches[0], ModelCounts(model="llama", lines=1))
        runner.round()
        runner.round()
        jobs.answer()
        runner.round()
    batch_id = jobs.batches[0].order.batch_id
    assert [line.split(";")[0] for line in jobs.said] == [
        f"a: created {batch_id}",
        "a: validating",
        "a: 0 of 1 lines, in_progress",
        "a: 1 of 1 lines, completed",
    ]


def test_a_batch_that_fails_moves_its_job_to_failed_with_every_error(jobs: Jobs) -> None:
    jobs.drop("a.jsonl")
    with jobs.runner() as runner:
        runner.round()
        errors = [ValidationError(code="invalid_url", message="Bad.", line=number) for number in (1, 12)]
        batches, batch_id = jobs.cli.api.database.batches, jobs.batches[0].order.batch_id
        run_now(batches.fail_validation("default", batch_id, errors=errors, total=12, at=LATER))
        assert runner.round()
        assert runner.has_failures
    assert jobs.states() == {"a": "failed"}
    assert jobs.read("failed/a/input.jsonl") == LINE
    assert jobs.read("failed/a/error.txt").splitlines() == [
        f"{batch_id} has ended as failed.",
        "line 1: Bad. (invalid_url)",
        "line 12: Bad. (invalid_url)",
    ]


def test_results_of_a_batch_that_ends_early_are_beside_the_reason(jobs: Jobs) -> None:
    jobs.drop("a.jsonl")
    with jobs.runner() as runner:
        runner.round()
        jobs.cli.end(jobs.batches[0].order.batch_id, BatchStatus.EXPIRED, output=b"{}\n", error=b"{ }\n")
        runner.round()
    assert "has ended as expired." in jobs.read("failed/a/error.txt")
    assert (jobs.read("failed/a/output.jsonl"), jobs.read("failed/a/errors.jsonl")) == ("{}\n", "{ }\n")


def test_a_job_that_is_queued_again_takes_the_batch_that_resumes_its_own_and_none_that_retries_lines(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_groups, "_PAGE", 1)
    answered = prompt_line("1", "one")
    jobs.drop("a.jsonl", answered + prompt_line("2", "two"))
    with jobs.runner() as runner:
        runner.round()
        first = jobs.batches[0].order.batch_id
        expired = error_line(request_id(first, len(answered)), "2", LineCode.BATCH_EXPIRED, "late") + b"\n"
        jobs.cli.end(first, BatchStatus.EXPIRED, output=b"{}\n", error=expired)
        runner.round()
        assert jobs.states() == {"a": "failed"}
        resumed = jobs.cli.run("resume", first)
        retried = jobs.cli.run("retry", first)
        assert (resumed.exit_code, retried.exit_code) == (0, 0)
        (jobs.path / "failed" / "a").rename(jobs.path / "input" / "ready" / "a")
        assert not runner.round()
        _, resuming, retrying = (batch.order.batch_id for batch in jobs.batches)
        assert jobs.said[-1] == f"a: continues with {resuming}"
        jobs.answer()
        assert runner.round()
    assert jobs.states() == {"a": "output"}
    assert len(jobs.read("output/a/output.jsonl").splitlines()) == 2
    assert jobs.files("output/a") == {"input.jsonl", "output.jsonl", "job.json"}
    assert json.loads(jobs.read("output/a/job.json"))["batch"] == resuming
    assert len(jobs.input_of(jobs.cli.row(retrying)).splitlines()) == 1


def test_jobs_that_have_ended_stay_until_a_user_removes_them(jobs: Jobs) -> None:
    jobs.drop("a.jsonl")
    with jobs.runner() as runner:
        runner.round()
        jobs.answer()
        for _ in range(3):
            runner.round()
        assert jobs.states() == {"a": "output"}
        shutil.rmtree(jobs.path / "output" / "a")
        jobs.drop("a.jsonl")
        runner.round()
        assert jobs.states() == {"a": "processing"}
    assert len(jobs.batches) == 2


def test_a_running_job_that_a_user_removes_is_forgotten(jobs: Jobs) -> None:
    jobs.drop("a.jsonl")
    with jobs.runner() as runner:
        runner.round()
        shutil.rmtree(jobs.path / "processing" / "a")
        assert runner.round()
    assert jobs.states() == {}


def test_a_file_is_taken_when_it_has_not_changed_for_a_while(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropped_files, "COMPLETE_AFTER_SECONDS", 3.0)
    now = 100.0
    path = jobs.drop("a.jsonl", "{")
    (jobs.path / ".hidden.jsonl").touch()
    (jobs.path / "b.jsonl.part").touch()
    (jobs.path / "notes.txt").touch()
    with JobFolder(jobs.path) as folder:
        dropped = DroppedFiles(folder, jobs.said.append, clock=lambda: now)
        assert dropped.take() == 1
        now += 2.9
        assert dropped.take() == 1
        path.write_text(LINE)
        now += 2.9
        assert dropped.take() == 1
        now += 2.9
        assert dropped.take() == 1
        assert jobs.states() == {}
        now += 0.2
        assert dropped.take() == 0
    assert jobs.states() == {"a": "input/ready"}
    assert jobs.read("input/ready/a/input.jsonl") == LINE
    assert {".hidden.jsonl", "b.jsonl.part", "notes.txt"} < jobs.files(".")


def test_a_file_among_the_queued_jobs_is_a_job_too(jobs: Jobs) -> None:
    (jobs.path / "input" / "ready").mkdir(parents=True)
    jobs.drop("input/ready/a.jsonl")
    with jobs.runner() as runner:
        runner.round()
    assert jobs.states() == {"a": "processing"}


def test_a_folder_has_one_process_at_a_time(jobs: Jobs) -> None:
    with jobs.runner():
        with pytest.raises(FolderError, match="Another `batchwright folder` uses"), JobFolder(jobs.path):
            pass
        ended = jobs.cli.run("folder", str(jobs.path), "--once")
        assert (ended.exit_code, "Another `batchwright folder` uses" in ended.stderr) == (3, True)
    with jobs.runner():
        pass


def test_a_round_polls_and_starts_a_bounded_number_of_jobs_each_in_turn(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        jobs.submit(f"job_{number}", input_jsonl=LINE)
    monkeypatch.setattr(job_runner, "_CALLS_PER_ROUND", 2)
    polled: list[str] = []
    get = Client.batch

    def counted(client: Client, batch_id: str) -> object:
        polled.append(batch_id)
        return get(client, batch_id)

    monkeypatch.setattr(Client, "batch", counted)
    with jobs.runner() as runner:
        runner.round()
        assert (len(polled), len(jobs.batches)) == (0, 2)
        runner.round()
        runner.round()
        runner.round()
    assert (len(polled), len(jobs.batches)) == (6, 3)
    assert set(polled[2:5]) == {batch.order.batch_id for batch in jobs.batches}


def test_a_key_that_is_refused_ends_the_command_and_fails_no_job(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.drop("a.jsonl")

    def refused(*_: object, **options: object) -> object:
        raise ClientError("no such key", is_rejected=True, status=HTTPStatus.UNAUTHORIZED)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "create", refused)
        ended = jobs.cli.run("folder", str(jobs.path), "--once")
    assert (ended.exit_code, ended.stderr) == (3, "no such key\n")
    assert jobs.states() == {"a": "processing"}
    with jobs.runner() as runner:
        runner.round()
    assert len(jobs.batches) == 1


def test_an_internal_error_of_the_api_delays_only_its_own_job(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.submit("a", input_jsonl=LINE)
    jobs.submit("b", input_jsonl=LINE)
    upload = Client.upload

    def broken(client: Client, file: object, name: str, **options: object) -> object:
        if name == "a.jsonl":
            raise ClientError("broken", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        return upload(client, file, name, **options)  # pyright: ignore[reportArgumentType]

    with monkeypatch.context() as patch, jobs.runner() as runner:
        patch.setattr(Client, "upload", broken)
        runner.round()
        assert not runner.round()
        assert len(jobs.batches) == 1
    assert [line for line in jobs.said if line.startswith("a")] == ["a: broken"]
    with jobs.runner() as runner:
        runner.round()
    assert len(jobs.batches) == 2


def test_the_command_runs_what_is_there_and_ends(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_events, "MAX_LISTENERS", 0)
    jobs.drop("a.jsonl")
    jobs.drop("b.jsonl", "no JSON")

    def answer(seconds: float) -> None:
        jobs.answer()

    monkeypatch.setattr("batchwright.starter.folder.job_runner.time.sleep", answer)
    ended = jobs.cli.run("folder", str(jobs.path), "--once", COLUMNS="80", TTY_COMPATIBLE="1", TERM="dumb")
    assert ended.exit_code == 1
    assert "a: 1 of 1 lines, completed" in ended.stdout
    assert "b: failed: " in ended.stdout
    assert max(len(line) for line in ended.stdout.splitlines()) <= 80
    (jobs.path / "failed" / "b").rename(jobs.path / "kept")
    assert jobs.cli.run("folder", str(jobs.path), "--once").exit_code == 0


def test_sigterm_ends_the_command_in_order(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.drop("a.jsonl")

    def stop(seconds: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("batchwright.starter.folder.job_runner.time.sleep", stop)
    before = signal.getsignal(signal.SIGTERM)
    ended = jobs.cli.run("folder", str(jobs.path))
    assert (ended.exit_code, ended.stdout.splitlines()[-1]) == (
        0,
        "Stopped; 1 running jobs continue at the API.",
    )
    assert signal.getsignal(signal.SIGTERM) is before
    assert jobs.states() == {"a": "processing"}
    assert jobs.cli.run("folder", str(jobs.path), "--once").exit_code == 2
