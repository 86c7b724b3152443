"""The chaos runs compare the directories of a folder with the batches of its inputs."""

from pathlib import Path

import pytest
from openai.types import Batch

from tests.chaos.folders import folder_differences
from tests.chaos.load import Submission

SUBMISSION = Submission([{"custom_id": "a"}], {"a": "answered"}, "completed")


def _differences(folder: Path, status: str, code: int) -> list[str]:
    batch = Batch.construct(id="batch_1", status=status)
    return folder_differences(folder, SUBMISSION, batch, code, "answers\n", "")


def _write(folder: Path, place: str, **changes: str | None) -> None:
    """Write the directory of the input of `SUBMISSION` to `place` in the folder.

    Args:
        changes: content of files by their name without `.jsonl`; None leaves the file out.
    """
    files: dict[str, str | None] = {"input": SUBMISSION.content.decode(), "output": "answers\n"}
    directory = folder / place / "lines"
    directory.mkdir(parents=True)
    for name, content in (files | changes).items():
        if content is not None:
            (directory / f"{name}.jsonl").write_text(content)
    if place == "failed":
        (directory / "error.txt").write_text("batch_1 has ended as expired.\n")


@pytest.mark.parametrize(("place", "status", "code"), [("output", "completed", 0), ("failed", "expired", 1)])
def test_a_directory_with_the_files_of_its_batch_passes(
    tmp_path: Path, place: str, status: str, code: int
) -> None:
    _write(tmp_path, place)
    assert _differences(tmp_path, status, code) == []


@pytest.mark.parametrize(
    "changes", [{"output": None}, {"output": "answers\nanswers\n"}, {"errors": "x\n"}, {"input": "x\n"}]
)
def test_a_directory_with_other_files_breaks_a_promise(
    tmp_path: Path, changes: dict[str, str | None]
) -> None:
    _write(tmp_path, "output", **changes)
    assert len(_differences(tmp_path, "completed", 0)) == 1


def test_an_input_in_another_or_a_second_place_breaks_a_promise(tmp_path: Path) -> None:
    _write(tmp_path, "failed")
    elsewhere = _differences(tmp_path, "completed", 0)
    _write(tmp_path, "output")
    twice = _differences(tmp_path, "completed", 0)
    place = tmp_path / "output" / "lines"
    assert elsewhere == twice == [f"is completed, and not in {place} only"]


def test_another_exit_code_or_reason_breaks_a_promise(tmp_path: Path) -> None:
    _write(tmp_path, "failed")
    assert _differences(tmp_path, "expired", 3) == ["is expired, and its folder ended with 3"]
    assert _differences(tmp_path, "cancelled", 1) == ["is cancelled, and its folder does not say so"]
