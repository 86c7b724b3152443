"""A folder and a whole stack: if the folder's process is killed, no input is lost or run twice."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.batches import ResultLine, chat_lines, until
from tests.e2e.stack import MODELS, Stack

pytestmark = pytest.mark.e2e

TENANT = "folder"


@contextmanager
def running(stack: Stack, folder: Path, *options: str) -> Generator[subprocess.Popen[str]]:
    """Run `batchwright folder` as a process, and kill it at the end."""
    command = ["-m", "batchwright.starter", "folder", str(folder), "--model", MODELS[0], *options]
    address = ["--url", stack.now.api, "--tenant", TENANT]
    with subprocess.Popen(
        [sys.executable, *command, *address], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_a_killed_folder_continues_with_the_same_batches(stack: Stack, tmp_path: Path) -> None:
    """The process is started again and again: it is killed when it has taken a file, and killed while the
    batch is in progress. Then it runs to its end. The last process is stopped with SIGTERM.
    """
    lines = chat_lines(MODELS, 20)
    processing = tmp_path / "processing" / "rivers"

    async def is_taken() -> bool:
        return processing.exists()

    async def has_batch() -> bool:
        record = processing / "batch.json"
        return record.exists() and json.loads(record.read_text())["batch"] is not None

    async with stack.client(TENANT) as client, stack.backend.hold() as hold:
        with running(stack, tmp_path):
            (tmp_path / "rivers.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            await until(is_taken)
        with running(stack, tmp_path):
            await until(has_batch)
            await hold.reached()
        await hold.release()
        prompt = tmp_path / "input" / "writing" / "1736700000_5_0"
        prompt.mkdir()
        (prompt / "prompt.txt").write_text("Name a river.")
        prompt.rename(tmp_path / "input" / "ready" / prompt.name)
        with running(stack, tmp_path, "--once") as process:
            said, _ = await asyncio.to_thread(process.communicate)
        assert process.returncode == 0, said
        batches = [batch async for batch in client.batches.list()]
    assert len(batches) == 2
    output = (tmp_path / "output" / "rivers" / "output.jsonl").read_text().splitlines()
    answered = [ResultLine.model_validate_json(line).custom_id for line in output]
    assert answered == [line["custom_id"] for line in lines]
    assert (tmp_path / "output" / prompt.name / "result.txt").read_text()
    with running(stack, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline()  # it handles signals from now on
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait) == 0
