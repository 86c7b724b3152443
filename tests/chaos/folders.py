"""A door (way to create batches) that uses `batchwright folder`. Its processes are killed and
started again.
"""

import asyncio
import json
import os
import random
import sys
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from openai.types import Batch

from batchwright.starter.folder.input_batches import METADATA_KEY
from tests.chaos.load import Seen, Submission
from tests.chaos.user import User
from tests.e2e.batches import until
from tests.e2e.stack import Stack

PATIENCE_SECONDS = 600.0  # as for events
_NAME = "lines"
_KILLS = ((0.5, 4.0), (1.0, 8.0))  # seconds after the start of each process that is killed


class Folders:
    """A door (way to create batches) that writes the input of each batch to a folder of its own.

    Users get the directory of the input, and the exit code of `batchwright folder`.

    Args:
        root: directory of all folders.
    """

    def __init__(self, stack: Stack, root: Path) -> None:
        self._stack, self._root = stack, root
        self._runs: dict[str, tuple[Path, asyncio.Task[int]]] = {}  # folder and its processes, by batch

    async def submit(self, user: User, submission: Submission) -> str:
        folder = self._root / uuid4().hex
        writing = folder / "input" / "writing" / _NAME
        writing.mkdir(parents=True)
        (writing / "input.jsonl").write_bytes(submission.content)
        (folder / "input" / "ready").mkdir()
        writing.rename(folder / "input" / "ready" / _NAME)
        run = asyncio.create_task(self._run(folder, user.tenant, submission))

        async def has_batch() -> bool:
            return _record(folder).get("batch") is not None or run.done()

        await until(has_batch, PATIENCE_SECONDS)
        batch_id = _record(folder).get("batch")
        assert batch_id is not None, f"{folder} ended with {run.result()} and has no batch"
        self._runs[batch_id] = (folder, run)
        return batch_id

    async def check(self, user: User, seen: Seen, batch: Batch) -> list[str]:
        folder, run = self._runs.pop(batch.id)
        try:
            code = await asyncio.wait_for(run, PATIENCE_SECONDS)
        except TimeoutError:
            return [f"has ended, and its folder {folder} has not"]
        texts = [await user.content(file_id) for file_id in (batch.output_file_id, batch.error_file_id)]
        broken = folder_differences(folder, seen.submission, batch, code, *texts)
        key = {f"metadata[{METADATA_KEY}]": _record(folder).get("key")}
        batches = await user.insist(lambda c: c.batches.list(extra_query=key))
        if [each.id for each in batches.data] != [batch.id]:
            broken.append(f"is one of {len(batches.data)} batches of an input in a folder")
        return broken

    async def _run(self, folder: Path, tenant: str, submission: Submission) -> int:
        """Run `batchwright folder` until its input has ended, and return its exit code.

        The first processes of the command are killed after a while. How long that is follows from the lines.
        """
        rng = random.Random(submission.content)
        for range_ in _KILLS:
            with suppress(TimeoutError):
                return await self._process(folder, tenant, submission.window, rng.uniform(*range_))
        return await self._process(folder, tenant, submission.window, None)

    async def _process(self, folder: Path, tenant: str, window: str, seconds: float | None) -> int:
        """Run `batchwright folder` once, and return its exit code.

        Raises:
            TimeoutError: it was killed because it had not ended after `seconds`.
        """
        options = ("--window", window, "--url", self._stack.now.api, "--tenant", tenant, "--once")
        with (folder / "process.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "batchwright.starter", "folder", str(folder), *options),
                env=dict(os.environ),
                stdout=log,
                stderr=log,
            )
        try:
            return await asyncio.wait_for(process.wait(), seconds)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _record(folder: Path) -> dict[str, str | None]:
    """Return the content of the input's `batch.json`; an empty dictionary if there is none yet."""
    for path in folder.glob(f"*/{_NAME}/batch.json"):
        with suppress(FileNotFoundError):  # the input was moved just now
            return json.loads(path.read_text())
    return {}


def folder_differences(
    folder: Path, submission: Submission, batch: Batch, code: int, output: str, errors: str
) -> list[str]:
    """Return a sentence for each difference between a folder and its ended batch.

    Args:
        code: exit code of `batchwright folder --once`.
        output: content of the batch's output file; empty if there is none.
        errors: the same for the error file.
    """
    is_done = batch.status == "completed"
    directory = folder / ("output" if is_done else "failed") / _NAME
    broken: list[str] = []
    if code != (0 if is_done else 1):
        broken.append(f"is {batch.status}, and its folder ended with {code}")
    if [path.parent for path in folder.glob(f"**/{_NAME}/input.jsonl")] != [directory]:
        return [*broken, f"is {batch.status}, and not in {directory} only"]
    expected = {"input.jsonl": submission.content.decode(), "output.jsonl": output, "errors.jsonl": errors}
    for name, content in expected.items():
        path = directory / name
        if (path.read_text() if path.exists() else "") != content:
            broken.append(f"has another {name} in its folder")
    reason = directory / "error.txt"
    if reason.exists() == is_done or not (is_done or f"ended as {batch.status}" in reason.read_text()):
        broken.append(f"is {batch.status}, and its folder does not say so")
    return broken
