"""The batch of `batchwright demo`: its lines, its expected end, and what the command prints about it."""

import asyncio
import json
import shlex
import tempfile
from pathlib import Path
from typing import Self

import pytest
from rich.console import Console
from typer.testing import CliRunner

from batchwright.contracts.api_objects.openai import (
    BatchExtension,
    BatchObject,
    InputDetails,
    OutputDetails,
    RequestCounts,
    UsageObject,
    WaitingObject,
)
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.terms import BatchStatus
from batchwright.starter.__main__ import app
from batchwright.starter.commands.local.demo import DemoRun
from batchwright.starter.embedded_stack import demo_batch
from batchwright.starter.embedded_stack.demo_output import (
    LastingReasons,
    ProgressBars,
    print_next_steps,
    print_result,
)
from batchwright.starter.embedded_stack.directory import StackInfo
from batchwright.starter.embedded_stack.supervisor import Supervisor


def a_batch(status: BatchStatus, *parts: ModelCounts, completed: int = 985, failed: int = 15) -> BatchObject:
    return BatchObject(
        id="batch_1",
        status=status,
        endpoint=demo_batch.ENDPOINT,
        model=None,
        errors=None,
        input_file_id="file-1",
        completion_window="24h",
        output_file_id=None,
        error_file_id=None,
        created_at=0,
        in_progress_at=None,
        expires_at=86_400,
        finalizing_at=None,
        completed_at=None,
        failed_at=None,
        expired_at=None,
        cancelling_at=None,
        cancelled_at=None,
        request_counts=RequestCounts(total=1000, completed=completed, failed=failed),
        usage=UsageObject(
            input_tokens=0,
            input_tokens_details=InputDetails(cached_tokens=0),
            output_tokens=0,
            output_tokens_details=OutputDetails(reasoning_tokens=0),
            total_tokens=0,
        ),
        metadata=None,
        x_batchwright=BatchExtension(models=list(parts)),
    )


def files(folder: Path, output: int, errors: int) -> tuple[Path, Path]:
    (folder / "output").write_text("{}\n" * output)
    (folder / "errors").write_text("{}\n" * errors)
    return folder / "output", folder / "errors"


def test_the_demo_has_a_thousand_requests_over_three_models_and_a_few_bad_ones() -> None:
    lines = list(demo_batch.demo_lines())
    models = {json.loads(line.text)["body"]["model"] for line in lines}
    assert len(lines) == len({json.loads(line.text)["custom_id"] for line in lines}) == 1000
    assert models == {*demo_batch.MODELS, demo_batch.UNSERVED_MODEL}
    assert sum(line.is_bad for line in lines) == 15


def test_a_batch_as_intended_is_expected(tmp_path: Path) -> None:
    assert demo_batch.is_as_expected(a_batch(BatchStatus.COMPLETED), *files(tmp_path, 985, 15))


@pytest.mark.parametrize(
    ("status", "completed", "output", "errors"),
    [
        (BatchStatus.EXPIRED, 985, 985, 15),
        (BatchStatus.COMPLETED, 984, 985, 15),
        (BatchStatus.COMPLETED, 985, 984, 15),
        (BatchStatus.COMPLETED, 985, 985, 0),
    ],
)
def test_any_other_end_is_not_expected(
    tmp_path: Path, status: BatchStatus, completed: int, output: int, errors: int
) -> None:
    batch = a_batch(status, completed=completed)
    assert not demo_batch.is_as_expected(batch, *files(tmp_path, output, errors))


def test_each_model_has_one_bar_that_fits_80_columns() -> None:
    console = Console(width=80)
    bars = ProgressBars(console, hidden=False)
    bars.show(a_batch(BatchStatus.IN_PROGRESS, ModelCounts(model="a", lines=10, completed=4)))
    bars.show(a_batch(BatchStatus.IN_PROGRESS, ModelCounts(model="a", lines=10, completed=6, failed=1)))
    with console.capture() as capture:
        console.print(bars.progress.get_renderable())
    (row,) = capture.get().splitlines()
    assert "7/10" in row
    assert "1 failed" in row
    assert len(row) <= 80


def a_result(folder: Path) -> demo_batch.DemoResult:
    return demo_batch.DemoResult(
        batch=a_batch(BatchStatus.COMPLETED),
        as_expected=True,
        seconds=1.0,
        page="http://127.0.0.1:20001/ui/batches/batch_1",
        ui="http://127.0.0.1:20000/namespaces/default/workflows/batch_1",
        data=folder,
        input_file=folder / "input.jsonl",
        output_file=folder / "output.jsonl",
        error_file=folder / "errors.jsonl",
    )


def test_the_last_commands_of_the_demo_are_quoted_for_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "my things; all"
    console = Console(width=80)
    with console.capture() as capture:
        print_next_steps(console, a_result(folder), is_running=False)
    lines = [line for line in capture.get().splitlines() if "my things" in line]
    start, remove = (shlex.split(line, comments=True) for line in lines)
    assert start[-2:] == ["--data", f"{folder}/stack"]
    assert remove == ["rm", "-r", str(folder)]


class StackWithoutProcesses(Supervisor):
    def __init__(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    @property
    def info(self) -> StackInfo:
        return StackInfo.model_construct()


class StoppedDemo(DemoRun):
    """A demo whose batch has completed, and which is stopped then."""

    async def _batch(self, stack: object) -> demo_batch.DemoResult:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return a_result(self._folder)


async def test_a_demo_that_kept_its_stack_prints_at_its_end_how_to_use_and_delete_its_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = StoppedDemo(tmp_path, StackWithoutProcesses(), json=False)
    with pytest.raises(asyncio.CancelledError):
        await demo.run(keep=True)
    running, ended = capsys.readouterr().out.split("Ctrl-C stops it.")
    assert f"rm -r {tmp_path}" not in running
    assert f"dev --data {tmp_path}/stack" in ended
    assert f"rm -r {tmp_path}" in ended


def test_a_demo_that_a_wrong_setting_prevents_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("BATCHWRIGHT_API_PORT", "many")
    assert CliRunner().invoke(app, ["demo"]).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_the_file_names_of_the_demo_are_never_wrapped(tmp_path: Path) -> None:
    for name in ("output.jsonl", "errors.jsonl"):
        (tmp_path / name).write_text("{}\n")
    console = Console(width=20)
    with console.capture() as capture:
        print_result(console, a_result(tmp_path))
    for name in ("input.jsonl", "output.jsonl", "errors.jsonl"):
        assert str(tmp_path / name) in capture.get()


def test_the_demo_prints_a_waiting_reason_once_and_skips_short_ones() -> None:
    reasons = LastingReasons()
    waits = a_batch(BatchStatus.FINALIZING)
    waits.x_batchwright.waiting = [WaitingObject(model="a", reason="the disk is full")]
    running = a_batch(BatchStatus.IN_PROGRESS)
    found = [reasons.new_reasons(batch, now) for batch, now in ((waits, 0.0), (running, 4.0), (waits, 6.0))]
    assert found == [[], [], []]
    assert reasons.new_reasons(waits, 11.0) == ["a: the disk is full"]
    assert reasons.new_reasons(waits, 20.0) == []
