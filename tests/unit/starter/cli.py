"""A fixture that runs commands against the real API, which has fake dependencies and is served on a free
port.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Coroutine, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import uvicorn
from typer.testing import CliRunner, Result

from batchwright.contracts.temporal_payloads.batch import (
    BatchForecast,
    ErrorCount,
    ErrorExample,
    ModelCounts,
    StartFit,
    StartForecast,
    WindowFit,
)
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.records import BatchOutcome, BatchRow, FileRow, SliceProgress
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource
from batchwright.database.tables.operations.forecasts import ForecastRow
from batchwright.starter.__main__ import app
from tests.fakes.api import ApiFixture

LISTING = "http://listing:8000"  # who lists models, where a test says so
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = datetime(2036, 3, 1, 12, tzinfo=UTC)
UNKNOWN = "batch_" + "0" * 32  # id of a batch that does not exist
LINE = '{"custom_id": "a", "body": {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}}\n'
Value = TypeVar("Value")


class Cli:
    """A fixture that runs commands in this process with `run`.

    The other methods create and change batches in the API's fake database.
    """

    def __init__(self, api: ApiFixture, url: str) -> None:
        self.api = api
        self.url = url

    def run(self, *arguments: str, **environment: str) -> Result:
        """Run a command and return its result. Unless `COLUMNS` is set, the width of the output is always the
        same.
        """
        variables = {"COLUMNS": None, "BATCHWRIGHT_URL": self.url, **environment}
        return CliRunner().invoke(app, list(arguments), env=variables)

    def submitted(self, folder: Path, *options: str) -> BatchRow:
        """Submit a batch of one line with the command `submit`, and return its row."""
        path = folder / "input.jsonl"
        path.write_text(LINE)
        batch_id = self.run("submit", str(path), *options).stdout.strip()
        return self.row(batch_id)

    def row(self, batch_id: str) -> BatchRow:
        row = run_now(self.api.database.batches.get("default", batch_id))
        assert row is not None
        return row

    def begin(self, row: BatchRow, *models: ModelCounts) -> None:
        total = sum(model.lines for model in models)
        batches = self.api.database.batches
        assert run_now(
            batches.start("default", row.order.batch_id, total=total, models=list(models), at=LATER)
        )

    def forecast(self, row: BatchRow, window: WindowFit) -> None:
        forecast = BatchForecast(
            made_at=datetime.now(UTC),
            lines_per_second=12.5,
            lines_ahead=3000,
            p50_seconds=240.5,
            p90_seconds=36_300.5,
            window=window,
        )
        rows = [ForecastRow("default", row.order.batch_id, forecast)]
        self.api.database.rows.forecasts.clear()
        assert run_now(self.api.database.forecasts.publish(rows, forecast.made_at))

    def forecast_start(self, row: BatchRow, window: StartFit) -> None:
        """Store the forecast of a batch that is being validated."""
        forecast = StartForecast(
            made_at=datetime.now(UTC),
            window=window,
            p50_seconds=240.5,
            p90_seconds=36_300.5,
            soonest_seconds=60.0,
            lines_ahead=3000,
        )
        assert run_now(self.api.database.forecasts.record_start("default", row.order.batch_id, forecast))

    def waits(self, row: BatchRow, model: str, reason: str, source: WaitingSource) -> None:
        waiting = WaitingRow(
            tenant="default",
            batch_id=row.order.batch_id,
            model=model,
            source=source,
            reason=reason,
            since=datetime.now(UTC),
            until=LATER,
        )
        run_now(self.api.database.waiting.report(waiting))

    def fails(self, row: BatchRow, model: str, lines: int, code: str) -> None:
        """Report that `lines` lines of a slice have failed with the error code `code`."""
        example = ErrorExample(custom_id="c", message="why")
        progress = SliceProgress(
            tenant="default",
            batch_id=row.order.batch_id,
            model=model,
            number=0,
            generation=0,
            attempt=1,
            completed=0,
            failed=lines,
            errors=[ErrorCount(code=code, count=lines, example=example)],
        )
        run_now(self.api.database.progress.record([progress]))

    def end(
        self,
        batch_id: str,
        status: BatchStatus = BatchStatus.COMPLETED,
        *,
        output: bytes | None = None,
        error: bytes | None = None,
        errors_summary: Sequence[ErrorCount] = (),
    ) -> None:
        outcome = BatchOutcome(
            status=status,
            completed=1 if output else 0,
            failed=1 if error else 0,
            usage=Usage(input_tokens=1_200, output_tokens=34),
            output=self._file(batch_id, "output", output),
            error=self._file(batch_id, "error", error),
            errors_summary=list(errors_summary),
        )
        run_now(self.api.database.batch_ends.finish("default", batch_id, outcome, LATER))

    @contextmanager
    def ending(self, status: BatchStatus) -> Generator[None]:
        """Context manager that ends the next batch with this status, as soon as it is created."""
        batches = self.api.database.rows.batches
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
        key = f"results/{batch_id}/{kind}"
        self.api.storage.objects[key] = content
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
    """Context manager that yields commands with an API that has no data. Later tests use the same API."""
    cli = _SPARE.pop() if _SPARE else _started()
    yield cli
    cli.api.clear()
    _SPARE.append(cli)


def _started() -> Cli:
    """Start an API server in a thread, and return the commands for it. It serves until the process ends."""
    api = ApiFixture(pass_headers="x-team", backends=[LISTING])
    # Its logging stays as it is: other tests of this process look at it.
    config = uvicorn.Config(api.app, log_config=None, access_log=False, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # a command that comes before the server is there waits for it

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(api.events.run())
            group.create_task(server.serve(sockets=[listener]))

    threading.Thread(target=asyncio.run, args=(serve(),), daemon=True).start()
    return Cli(api, f"http://127.0.0.1:{listener.getsockname()[1]}")
