"""The demo's batch."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from batchwright.contracts.openai import BatchStatus
from starter.stack import trial
from starter.stack.trial_view import Bars
from starter.views import Batch, Counts, Extension, ModelPart


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
