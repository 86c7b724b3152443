# Written by `python -m tests.unit.client.synchronous` from async_batches.py: change that file.
"""Synchronous client: submit batches, follow them, and read their results."""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from tempfile import SpooledTemporaryFile

from openai import BadRequestError, OpenAI, PermissionDeniedError, Stream
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
from batchwright.client.groups import BatchPage, group_query, is_group, parts_of_group, summed
from batchwright.client.requests import (
    MAX_BYTES_IN_MEMORY,
    BatchLimits,
    Body,
    Request,
    Submission,
    Upload,
    custom_id_of,
    retry_body,
)
from batchwright.client.results import STATUSES, InputOrder, Result, Status


class Batches:
    """Submits batches and finds them again.

    Args:
        client: the official client, with the base URL of Batchwright's API and your key.

    If the API responds with an error, methods raise an exception of the official client, such as
    `openai.NotFoundError`.
    """

    def __init__(self, client: OpenAI) -> None:
        self._client = client

    def submit(
        self,
        requests: Iterable[Request | Body],
        *,
        endpoint: str,
        completion_window: str = "24h",
        metadata: Mapping[str, str] | None = None,
        x_batchwright: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
    ) -> "Job":
        """Upload requests as an input file, create a batch from it, and return its job.

        A request that the official client repeats creates no second file and no second batch. Requests that
        are too many or too large for one batch become a group of batches, whose job is a `JobGroup`.

        Args:
            requests: bodies, or `Request`s with custom ids, or a `table`. A body gets the custom id
                `request-N`; N is its index, from 0.
            endpoint: endpoint of all requests, such as `/v1/chat/completions`.
            completion_window: time after which the batch expires, such as `90m`.
            metadata: up to 16 pairs that are stored with the batch.
            x_batchwright: Batchwright's own fields of a new batch, such as `{"priority": 5}`.
            idempotency_key: for 24 hours, a call with the same key and the same requests returns the
                same batch, even from another process. With None, each call creates a batch.

        Raises:
            ValueError: there are no requests, a custom id occurs twice, or a body is not valid JSON.
            TypeError: a body has a value that JSON cannot represent.
        """
        with SpooledTemporaryFile(MAX_BYTES_IN_MEMORY) as file:
            submission = Submission(requests, endpoint, file, idempotency_key)
            limits = self._limits()
            uploads, group = submission.uploads(limits, completion_window, metadata, x_batchwright)
            jobs = [self._create(upload) for upload in uploads]
        return JobGroup(group, jobs) if group else jobs[0]

    def _limits(self) -> BatchLimits:
        try:
            return self._client.get("/x/limits", cast_to=BatchLimits)
        except PermissionDeniedError:  # a key without the scope `read`
            return BatchLimits()

    def _create(self, upload: Upload) -> "Job":
        headers = upload.headers
        uploaded = self._client.files.create(
            file=("requests.jsonl", upload.file), purpose="batch", extra_headers=headers
        )
        body = {"input_file_id": uploaded.id, **upload.creation}
        batch = self._client.post("/batches", cast_to=Batch, body=body, options={"headers": headers})
        return Job(self._client, batch, upload.custom_ids)

    def job(self, batch_id: str) -> "Job":
        """Return the job of an existing batch, however it was created, or the job of a group of batches.

        Raises:
            openai.NotFoundError: there is no such batch.
            LookupError: there is no such group, or some of its parts have no batch.
        """
        if is_group(batch_id):
            jobs = [Job(self._client, batch) for batch in self._parts(batch_id)]
            return JobGroup(batch_id, jobs)
        return Job(self._client, self._client.batches.retrieve(batch_id))

    def _parts(self, group: str) -> list[Batch]:
        found = list[Batch]()
        while True:
            query = group_query(group, found[-1].id if found else None)
            page = self._client.get("/batches", cast_to=BatchPage, options={"params": query})
            found += page.data
            if not page.has_more:
                return parts_of_group(group, found)


class Job:
    """A batch to follow. `Batches` creates it.

    Follow, wait and results connect again if a connection breaks or the API is unavailable. After about 15
    minutes without a response, they raise the last error.

    Attributes:
        batch: the batch as the API has shown it last.
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
        with closing(self._beats()) as beats:
            for batch in beats:
                if batch is not last:
                    last = batch
                    yield batch

    def wait(self) -> Batch:
        """Wait until the batch has ended and its files are written. Return it, however it has ended."""
        for _ in self._beats():
            pass
        return self.batch

    def results(self) -> Generator[Result]:
        """Yield the result of each line in input order, completed or failed, as soon as it is settled.

        A line that is not settled holds back the results after it. The iterator ends with the batch.

        Raises:
            ResultsMissing: the batch has ended, and some lines have no result. It is raised after the results
                of all others.
        """
        patience = Patience()
        if self._custom_ids is None:
            self._custom_ids = self._read_custom_ids(patience)
        order = InputOrder(self._custom_ids)
        with closing(self._beats()) as beats:
            for batch in beats:
                if order.has_settled(batch) or has_ended(batch):
                    with closing(self._settled(order, patience)) as settled:
                        yield from settled
        order.check(self.batch)

    def retry_failed(
        self, codes: Iterable[str] | None = None, *, completion_window: str | None = None
    ) -> "Job":
        """Create a batch from the failed lines of this batch, which has ended, and return its job.

        A batch can be retried once. A repeated call returns the same new batch.

        Args:
            codes: retry only lines with these error codes, as in `LineError.code`; None for all failed lines.
            completion_window: window of the new batch; None for the same length as the window of this batch.

        Raises:
            openai.ConflictError: the batch is live, no line failed so, or it was retried with other codes.
        """
        path, body = batch_path(self.id, "/x/retry"), retry_body(codes, completion_window)
        return Job(self._client, self._client.post(path, cast_to=Batch, body=body))

    def _beats(self) -> Generator[Batch]:
        """Yield the batch each time the API sends something.

        This is an event, or a comment that keeps the connection alive after 15 s without an event.
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

    def _settled(self, order: InputOrder, patience: Patience) -> Generator[Result]:
        """Yield the results of the next lines, up to the first line that is not settled."""
        while True:
            try:
                with (
                    closing(self._file("completed", order)) as completed,
                    closing(self._file("failed", order)) as failed,
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

    def _file(self, status: Status, order: InputOrder) -> Generator[Result]:
        """Yield the results with this status that were not taken, up to the first unsettled line."""
        lines, path = Lines(), batch_path(self.id, "/x/results")
        with self._open(path, order.parameters(status), RESULTS_TIMEOUT_SECONDS) as pieces:
            for piece in pieces:
                for line in lines.feed(piece):
                    result = Result.parse(line, failed=status == "failed")
                    if not order.is_taken(result):
                        yield result

    def _read_custom_ids(self, patience: Patience) -> list[str]:
        """Return the custom ids in the input file."""
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


class JobGroup(Job):
    """A group of batches to follow as one job: the parts of an input that is too large for one batch.

    Attributes:
        batch: sums over the group, as the API has shown its batches last. Its id is the id of the group.
        jobs: jobs of the parts, in the order of the requests.
    """

    def __init__(self, group: str, jobs: "list[Job]") -> None:
        self.jobs, self._group = jobs, group
        self.batch = self._summed()

    def follow(self) -> Generator[Batch]:
        """Yield the sums now and after changes, until all batches have ended and their files are written.

        The batches are followed one after another.
        """
        for job in self.jobs:
            with closing(job.follow()) as batches:
                for _ in batches:
                    self.batch = self._summed()
                    yield self.batch

    def wait(self) -> Batch:
        """Wait until all batches have ended and their files are written. Return the sums."""
        for _ in self.follow():
            pass
        return self.batch

    def results(self) -> Generator[Result]:
        """Yield the result of each line in the order of the requests, as `Job.results` does."""
        for job in self.jobs:
            with closing(job.results()) as results:
                yield from results
            self.batch = self._summed()

    def retry_failed(
        self, codes: Iterable[str] | None = None, *, completion_window: str | None = None
    ) -> "Job":
        """Not possible for a group: retry the batches whose lines failed, which are in `jobs`.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"{self.id} is several batches: call retry_failed of those in `jobs`.")

    def _summed(self) -> Batch:
        return summed(self._group, [job.batch for job in self.jobs])
