# Written by `python -m tests.unit.client.synchronous` from async_batch_handle.py: change that file.
"""Synchronous handle of a batch: follow the batch, read its results, and control it."""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager

from openai import BadRequestError, OpenAI, Stream
from openai.types import Batch

from batchwright.client.connection import (
    ERRORS,
    EVENTS_TIMEOUT_SECONDS,
    RECONNECT_SECONDS,
    RESULTS_TIMEOUT_SECONDS,
    Events,
    Lines,
    Patience,
    batch_path,
    has_ended,
)
from batchwright.client.groups import (
    Deleted,
)
from batchwright.client.requests import (
    custom_id_of,
    retry_body,
)
from batchwright.client.results import STATUSES, InputOrder, Result, Status


class BatchHandle:
    """A handle of a batch, with which you follow the batch, control it and read its results. `Batches`
    creates handles.

    `follow`, `wait` and `results` reconnect if a connection breaks or the API is unavailable. After about 15
    minutes without a response, they raise the last error.

    Attributes:
        batch: the batch, as the API last showed it.
    """

    def __init__(self, client: OpenAI, batch: Batch, custom_ids: list[str] | None = None) -> None:
        self._client, self.batch, self._custom_ids = client, batch, custom_ids

    @property
    def id(self) -> str:
        """Id of the batch."""
        return self.batch.id

    def follow(self) -> Generator[Batch]:
        """Yield the batch now and after each change, until it has ended and its files are written."""
        last = None
        with closing(self._updates()) as updates:
            for batch in updates:
                if batch is not last:
                    last = batch
                    yield batch

    def wait(self) -> Batch:
        """Wait until the batch has ended and its files are written. Return the batch.

        The batch is returned even if it failed, expired or was cancelled.
        """
        for _ in self._updates():
            pass
        return self.batch

    def results(self) -> Generator[Result]:
        """Yield the results of completed and failed lines in input order, even while the batch is running.

        The result of a line is yielded when this line and all lines before it have final results. The
        iteration ends when the batch has ended.

        Raises:
            ResultsMissing: the batch has ended, and some lines have no result. The results before the first
                of these lines have been yielded.
        """
        patience = Patience()
        if self._custom_ids is None:
            self._custom_ids = self._read_custom_ids(patience)
        order = InputOrder(self._custom_ids)
        with closing(self._updates()) as updates:
            for batch in updates:
                if order.has_settled(batch) or has_ended(batch):
                    with closing(self._next_results(order, patience)) as settled:
                        yield from settled
        order.check(self.batch)

    def retry_failed(
        self, codes: Iterable[str] | None = None, *, completion_window: str | None = None
    ) -> "BatchHandle":
        """Create a batch that sends the failed lines of this ended batch again, and return its handle.

        Only the first call creates a batch. Later calls return the handle of this new batch.

        Args:
            codes: retry only lines with these error codes, as in `LineError.code`; None for all failed lines.
            completion_window: completion window of the new batch, such as `90m`; None for the same length as
                this batch's window.

        Raises:
            openai.ConflictError: the batch has not ended, no line failed with one of the codes, or the batch
                was already retried with other codes.
        """
        path, body = batch_path(self.id, "/x/retry"), retry_body(codes, completion_window)
        return BatchHandle(self._client, self._client.post(path, cast_to=Batch, body=body))

    def pause(self) -> Batch:
        """Pause the batch, and return it. No more of its lines are sent until you call `resume`. The deadline
        does not change.

        Raises:
            openai.ConflictError: the batch has ended or is being cancelled.
        """
        self.batch = self._client.post(batch_path(self.id, "/x/pause"), cast_to=Batch)
        return self.batch

    def resume(self, *, completion_window: str | None = None) -> "BatchHandle":
        """Resume a paused batch, or create a new batch that continues an ended batch.

        - If this batch is paused, it continues. Return a handle of this batch.
        - If this batch ended before all lines had a result, create a new batch, and return its handle. The
          new batch sends the lines without a result, and copies the results that this batch has. Only the
          first call creates a batch. Later calls return the handle of this new batch.

        Args:
            completion_window: completion window of the new batch, such as `90m`; None for the same length as
                this batch's window.

        Raises:
            openai.ConflictError: the batch cannot be resumed. For example, it is completed or is being
                cancelled, its input is invalid, or its files were deleted.
        """
        path, body = batch_path(self.id, "/x/resume"), retry_body(None, completion_window)
        return BatchHandle(
            self._client, self._client.post(path, cast_to=Batch, body=body or None), self._custom_ids
        )

    def cancel(self) -> Batch:
        """Cancel the batch, as `client.batches.cancel` does, and return it.

        Results that the batch already has are kept. If the batch was already cancelled, nothing changes.

        Raises:
            openai.ConflictError: the batch has already completed, failed or expired.
        """
        self.batch = self._client.batches.cancel(self.id)
        return self.batch

    def delete(self, *, keep_files: bool = False) -> None:
        """Delete an ended batch, and by default its output and error files. A repeated call has no effect.

        Args:
            keep_files: True to keep the output and error files.

        Raises:
            openai.ConflictError: the batch has not ended, its files are not yet written or not yet copied to
                its `output_location`, or a batch that resumes this batch still reads the results.
        """
        query = {"keep_files": "true"} if keep_files else {}
        self._client.delete(batch_path(self.id, ""), cast_to=Deleted, options={"params": query})

    def _updates(self) -> Generator[Batch]:
        """Yield the batch each time the API sends data on the event stream, until the batch has ended.

        When the batch changes, the API sends an event with the new state. After 15 s without an event, it
        sends a comment to keep the connection open. A comment contains no state, so the last known state is
        yielded again.
        """
        events, patience = Events(), Patience()
        path = batch_path(self.id, "/x/events")
        while True:
            try:
                with self._open(path, {}, EVENTS_TIMEOUT_SECONDS, events.connect()) as pieces:
                    for piece in pieces:
                        patience.reset()
                        self.batch = events.feed(piece) or self.batch
                        yield self.batch
                        if has_ended(self.batch):
                            return
                pause = RECONNECT_SECONDS
            except ERRORS as error:
                pause = patience.pause_after(error)
            time.sleep(pause)

    def _next_results(self, order: InputOrder, patience: Patience) -> Generator[Result]:
        """Yield the next results in input order. Stop at the first line that has no final result yet.

        Args:
            order: merges completed and failed lines in input order. It remembers which results were already
                yielded, and these are not yielded again.
            patience: decides how long to wait before a request is repeated after an error.
        """
        while True:
            try:
                with (
                    closing(self._read_results("completed", order)) as completed,
                    closing(self._read_results("failed", order)) as failed,
                ):
                    files: dict[Status, Iterator[Result]] = {"completed": completed, "failed": failed}
                    heads: dict[Status, Result | None] = {
                        status: next(files[status], None) for status in STATUSES
                    }
                    patience.reset()
                    while found := order.next_of(heads):
                        status, result = found
                        order.take(status, result)
                        yield result
                        heads[status] = next(files[status], None)
                return
            except BadRequestError:
                if not order.rewind():
                    raise
            except ERRORS as error:
                time.sleep(patience.pause_after(error))

    def _read_results(self, status: Status, order: InputOrder) -> Generator[Result]:
        """Request the results with this status (completed or failed), and yield the results in input order.

        The API stops at the first input line that has no final result yet. Results that the caller has
        already got are not yielded again; `order` remembers these results.
        """
        lines, path = Lines(), batch_path(self.id, "/x/results")
        with self._open(path, order.parameters(status), RESULTS_TIMEOUT_SECONDS) as pieces:
            for piece in pieces:
                for line in lines.feed(piece):
                    result = Result.parse(line, failed=status == "failed")
                    if not order.is_taken(result):
                        yield result

    def _read_custom_ids(self, patience: Patience) -> list[str]:
        """Read the batch's input file, and return its custom ids in order.

        Args:
            patience: decides how long to wait before a request is repeated after an error.
        """
        while True:
            lines = Lines()
            try:
                path = f"/files/{self.batch.input_file_id}/content"
                with self._open(path, {}, RESULTS_TIMEOUT_SECONDS) as pieces:
                    read = [custom_id_of(line) for piece in pieces for line in lines.feed(piece)]
                read.append(custom_id_of(lines.rest()))
                return [custom_id for custom_id in read if custom_id is not None]
            except ERRORS as error:
                time.sleep(patience.pause_after(error))

    @contextmanager
    def _open(
        self,
        path: str,
        parameters: Mapping[str, object],
        timeout_seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> Generator[Iterator[bytes]]:
        """Context manager that sends a GET request. It yields an iterator over the bytes of the response."""
        stream = self._client.get(
            path,
            cast_to=object,
            options={"params": parameters, "headers": headers or {}, "timeout": timeout_seconds},
            stream=True,
            stream_cls=Stream[object],
        )
        with stream:
            yield stream.response.iter_bytes()
