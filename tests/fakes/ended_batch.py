"""A batch of six lines that has ended, for tests on any database and storage."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.terms import BatchStatus, Usage, ValidationError
from batchwright.database.database import Database
from batchwright.database.records import BatchOutcome, FileRow
from batchwright.rules.ids import derived_file_id, request_id
from batchwright.rules.input.line_splitter import LineSplitter
from batchwright.rules.results.error_tally import ErrorTally, line_error
from batchwright.rules.results.output_lines import error_line, result_line
from batchwright.storage.base import Storage

SYSTEM = [ValidationError(code="system_error", message="no storage")]
LINES = [f'{{"custom_id": "é{n}",  "body": {{"model": "llama"}}}}'.encode() for n in range(6)]
INPUT = b"\r\n".join(LINES[:3]) + b"\n\n" + b"\n".join(LINES[3:])  # the last one without a newline


class Ended:
    """A batch with the input INPUT. `finish` ends it."""

    def __init__(self, database: Database, storage: Storage, order: BatchOrder) -> None:
        self._database, self._storage, self.order = database, storage, order
        splitter = LineSplitter(1000)
        self._offsets = [line.offset for line in [*splitter.feed(INPUT), *splitter.finish()]]

    async def finish(
        self,
        status: BatchStatus,
        failed: Sequence[int],
        codes: Mapping[int, LineCode] | None = None,
    ) -> None:
        """End the batch.

        Args:
            failed: numbers of the failed lines. Each gets a line in the error file.
            codes: error codes by line number; `batch_expired` for a failed line without a code.
        """
        failures = {n: self._failure(n, (codes or {}).get(n, LineCode.BATCH_EXPIRED)) for n in failed}
        done = [n for n in range(len(LINES)) if n not in failed]
        output = await self._file("output", [self._success(n) for n in done])
        error = await self._file("error", list(failures.values()))
        outcome = BatchOutcome(
            status=status,
            completed=len(done),
            failed=len(failed),
            usage=Usage(),
            output=output,
            error=error,
            errors=SYSTEM if status is BatchStatus.FAILED else [],
            errors_summary=ErrorTally(map(line_error, failures.values())).counts(),
        )
        await self._database.batch_ends.finish("default", self.order.batch_id, outcome, datetime.now(UTC))

    def _success(self, n: int) -> bytes:
        id = request_id(self.order.batch_id, self._offsets[n])
        return result_line(id, f"é{n}", status_code=200, backend_request_id="", body=b"{}")

    def _failure(self, n: int, code: LineCode) -> bytes:
        id = request_id(self.order.batch_id, self._offsets[n])
        return error_line(id, f"é{n}", code, "x" * 100_000)

    async def _file(self, kind: str, lines: list[bytes]) -> FileRow | None:
        if not lines:
            return None
        data = b"".join(line + b"\n" for line in lines)
        row = FileRow(
            id=derived_file_id(self.order.batch_id, kind),
            tenant="default",
            purpose="batch_output",
            filename="x",
            bytes=len(data),
            created_at=self.order.created_at,
            storage_key=f"{self.order.batch_id}/{kind}",
        )
        await self._storage.put(row.storage_key, data)
        return row
