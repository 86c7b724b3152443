"""The command line against the real API over fakes, served on a port of its own."""

import asyncio
import socket
import threading
import time
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import uvicorn
from typer.testing import CliRunner, Result

from batchwright.contracts.openai import BatchStatus, Usage
from batchwright.database.rows import BatchRow, FileRow, ModelCount, Outcome
from batchwright.database.waiting_base import Source, Waiting
from starter.__main__ import app
from tests.fakes.api import House

LISTING = "http://listing:8000"  # who lists models, where a test says so
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = datetime(2036, 3, 1, 12, tzinfo=UTC)
LINE = '{"custom_id": "a", "body": {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}}\n'
Value = TypeVar("Value")


class Cli:
    """`run` is the command line; the rest arranges what the API knows."""

    def __init__(self, house: House, url: str) -> None:
        self.house = house
        self.url = url

    def run(self, *arguments: str, **environment: str) -> Result:
        return CliRunner().invoke(app, list(arguments), env={"BATCHWRIGHT_URL": self.url, **environment})

    def submitted(self, folder: Path, *options: str) -> BatchRow:
        """A batch of one line, validating."""
        path = folder / "input.jsonl"
        path.write_text(LINE)
        batch_id = self.run("submit", str(path), *options).stdout.strip()
        return self.row(batch_id)

    def row(self, batch_id: str) -> BatchRow:
        row = run_now(self.house.database.batches.get("default", batch_id))
        assert row is not None
        return row

    def begin(self, row: BatchRow, *models: ModelCount) -> None:
        total = sum(model.lines for model in models)
        batches = self.house.database.batches
        assert run_now(
            batches.begin("default", row.order.batch_id, total=total, models=list(models), at=LATER)
        )

    def waits(self, row: BatchRow, model: str, reason: str, source: Source) -> None:
        waiting = Waiting(
            tenant="default",
            batch_id=row.order.batch_id,
            model=model,
            source=source,
            reason=reason,
            since=datetime.now(UTC),
            until=LATER,
        )
        run_now(self.house.database.waiting.tell(waiting))

    def end(
        self,
        batch_id: str,
        status: BatchStatus = BatchStatus.COMPLETED,
        *,
        output: bytes | None = None,
        error: bytes | None = None,
    ) -> None:
        outcome = Outcome(
            status=status,
            completed=1 if output else 0,
            failed=1 if error else 0,
            usage=Usage(input_tokens=1_200, output_tokens=34),
            output=self._file(batch_id, "output", output),
            error=self._file(batch_id, "error", error),
        )
        run_now(self.house.database.batches.finish("default", batch_id, outcome, LATER))

    @contextmanager
    def ending(self, status: BatchStatus) -> Generator[None]:
        """The next batch ends so, as soon as it is there."""
        batches = self.house.database.rows.batches
        known = set(batches)

        def end_it() -> None:
            while not (fresh := set(batches) - known):
                time.sleep(0.001)
            for _, batch_id in fresh:
                self.end(batch_id, status)

        thread = threading.Thread(target=end_it, daemon=True)
        thread.start()
        yield
        thread.join(240)
        assert not thread.is_alive(), "no batch came"

    def _file(self, batch_id: str, kind: str, content: bytes | None) -> FileRow | None:
        if content is None:
            return None
        key = f"results/{kind}"
        self.house.storage.objects[key] = content
        return FileRow(
            id=f"file-{batch_id.removeprefix('batch_')[:-1]}{'0' if kind == 'output' else '1'}",
            tenant="default",
            purpose="batch_output",
            filename=f"{batch_id}_{kind}.jsonl",
            bytes=len(content),
            created_at=NOW,
            storage_key=key,
        )


def run_now(coroutine: Coroutine[object, object, Value]) -> Value:
    return asyncio.run(coroutine)


# Servers that no test uses now. One that stops needs a tenth of a second to see that it should.
_SPARE: list[Cli] = []


@contextmanager
def served() -> Generator[Cli]:
    """The API with nothing in it."""
    cli = _SPARE.pop() if _SPARE else _started()
    yield cli
    cli.house.clear()
    _SPARE.append(cli)


def _started() -> Cli:
    """It serves until the process ends."""
    house = House(pass_headers="x-team", backends=[LISTING])
    # Its logging stays as it is: other tests of this process look at it.
    config = uvicorn.Config(house.app, log_config=None, access_log=False, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # a command that comes before the server is there waits for it
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    return Cli(house, f"http://127.0.0.1:{listener.getsockname()[1]}")
