"""The demo's batch."""

import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from batchwright.contracts.openai import BatchStatus
from starter.stack import trial
from starter.stack.trial_view import Bars, Reasons, conclude, look_around
from starter.views import Batch, Counts, Extension, ModelPart, Waiting


def a_batch(status: BatchStatus, *parts: ModelPart, completed: int = 985, failed: int = 15) -> Batch:
    return Batch(
        id="batch_1",
        status=status,
        endpoint=trial.ENDPOINT,
        input_file_id="file-1",
        completion_window="24h",
        created_at=0,
        request_counts=Counts(total=1000, completed=completed, failed=failed),
        x_batchwright=Extension(models=list(parts)),
    )


def files(folder: Path, output: int, errors: int) -> tuple[Path, Path]:
    (folder / "output").write_text("{}\n" * output)
    (folder / "errors").write_text("{}\n" * errors)
    return folder / "output", folder / "errors"


def test_the_demo_has_a_thousand_requests_over_three_models_and_a_few_bad_ones() -> None:
    lines = list(trial.lines())
    models = {json.loads(line.text)["body"]["model"] for line in lines}
    assert len(lines) == len({json.loads(line.text)["custom_id"] for line in lines}) == 1000
    assert models == {*trial.MODELS, trial.UNSERVED_MODEL}
    assert sum(line.is_bad for line in lines) == 15


def test_a_batch_as_intended_is_expected(tmp_path: Path) -> None:
    assert trial.is_as_expected(a_batch(BatchStatus.COMPLETED), *files(tmp_path, 985, 15))


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
    assert not trial.is_as_expected(batch, *files(tmp_path, output, errors))


def test_each_model_has_one_bar_that_fits_80_columns() -> None:
    console = Console(width=80)
    bars = Bars(console, hidden=False)
    bars.show(a_batch(BatchStatus.IN_PROGRESS, ModelPart(model="a", lines=10, completed=4)))
    bars.show(a_batch(BatchStatus.IN_PROGRESS, ModelPart(model="a", lines=10, completed=6, failed=1)))
    with console.capture() as capture:
        console.print(bars.progress.get_renderable())
    (row,) = capture.get().splitlines()
    assert "7/10" in row
    assert "1 failed" in row
    assert len(row) <= 80


def a_result(folder: Path) -> trial.DemoResult:
    return trial.DemoResult(
        batch=a_batch(BatchStatus.COMPLETED),
        as_expected=True,
        seconds=1.0,
        ui="http://127.0.0.1:20000/namespaces/default/workflows/batch_1",
        data=folder,
        input_file=folder / "input.jsonl",
        output_file=folder / "output.jsonl",
        error_file=folder / "errors.jsonl",
    )


def test_the_demos_last_commands_are_for_a_shell_whatever_is_in_the_folders_name(tmp_path: Path) -> None:
    folder = tmp_path / "my things; all"
    console = Console(width=80)
    with console.capture() as capture:
        look_around(console, a_result(folder), is_running=False)
    lines = [line for line in capture.get().splitlines() if "my things" in line]
    start, remove = (shlex.split(line, comments=True) for line in lines)
    assert start[-2:] == ["--data", f"{folder}/stack"]
    assert remove == ["rm", "-r", str(folder)]


def test_the_demos_files_are_named_unbroken_however_narrow_the_terminal_is(tmp_path: Path) -> None:
    for name in ("output.jsonl", "errors.jsonl"):
        (tmp_path / name).write_text("{}\n")
    console = Console(width=20)
    with console.capture() as capture:
        conclude(console, a_result(tmp_path))
    for name in ("input.jsonl", "output.jsonl", "errors.jsonl"):
        assert str(tmp_path / name) in capture.get()


def test_the_demo_tells_once_what_its_batch_waits_for_and_nothing_that_is_over_in_a_moment() -> None:
    reasons = Reasons()
    waits = a_batch(BatchStatus.FINALIZING)
    waits = waits.model_copy(
        update={"x_batchwright": Extension(waiting=[Waiting(model="a", reason="the disk is full")])}
    )
    goes_on = a_batch(BatchStatus.IN_PROGRESS)
    told = [reasons.to_tell(batch, now) for batch, now in ((waits, 0.0), (goes_on, 4.0), (waits, 6.0))]
    assert told == [[], [], []]
    assert reasons.to_tell(waits, 11.0) == ["a: the disk is full"]
    assert reasons.to_tell(waits, 20.0) == []
