"""Asynchronous client: submit batches, follow them, and read their results."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from tempfile import SpooledTemporaryFile

from openai import AsyncOpenAI, AsyncStream, BadRequestError, PermissionDeniedError
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


class AsyncBatches:
    """Submits batches and finds them again.

    Args:
        client: the official client, with the base URL of Batchwright's API and your key.

    If the API responds with an error, methods raise an exception of the official client, such as
    `openai.NotFoundError`.
    """

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    async def submit(
        self,
        requests: Iterable[Request | Body],
        *,
        endpoint: str,
        completion_window: str = "24h",
        metadata: Mapping[str, str] | None = None,
        x_batchwright: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
    ) -> "AsyncJob":
        """Upload requests as an input file, create a batch from it, and return its job.

        A request that the official client repeats creates no second file and no second batch. Requests that
        are too many or too large for one batch become a group of batches, whose job is a `AsyncJobGroup`.

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
            limits = await self._limits()
            uploads, group = submission.uploads(limits, completion_window, metadata, x_batchwright)
            jobs = [await self._create(upload) for upload in uploads]
        return AsyncJobGroup(group, jobs) if group else jobs[0]

    async def _limits(self) -> BatchLimits:
        try:
            return await self._client.get("/x/limits", cast_to=BatchLimits)
        except PermissionDeniedError:  # a key without the scope `read`
            return BatchLimits()

    async def _create(self, upload: Upload) -> "AsyncJob":
        headers = upload.headers
        uploaded = await self._client.files.create(
            file=("requests.jsonl", upload.file), purpose="batch", extra_headers=headers
        )
        body = {"input_file_id": uploaded.id, **upload.creation}
        batch = await self._client.post("/batches", cast_to=Batch, body=body, options={"headers": headers})
        return AsyncJob(self._client, batch, upload.custom_ids)

    async def job(self, batch_id: str) -> "AsyncJob":
        """Return the job of an existing batch, however it was created, or the job of a group of batches.

        Raises:
            openai.NotFoundError: there is no such batch.
            LookupError: there is no such group, or some of its parts have no batch.
        """
        if is_group(batch_id):
            jobs = [AsyncJob(self._client, batch) for batch in await self._parts(batch_id)]
            return AsyncJobGroup(batch_id, jobs)
        return AsyncJob(self._client, await self._client.batches.retrieve(batch_id))

    async def _parts(self, group: str) -> list[Batch]:
        found = list[Batch]()
        while True:
            query = group_query(group, found[-1].id if found else None)
            page = await self._client.get("/batches", cast_to=BatchPage, options={"params": query})
            found += page.data
            if not page.has_more:
                return parts_of_group(group, found)


class AsyncJob:
    """A batch to follow. `AsyncBatches` creates it.

    Follow, wait and results connect again if a connection breaks or the API is unavailable. After about 15
    minutes without a response, they raise the last error.

    Attributes:
        batch: the batch as the API has shown it last.
    """

    def __init__(self, client: AsyncOpenAI, batch: Batch, custom_ids: list[str] | None = None) -> None:
        self._client, self.batch, self._custom_ids = client, batch, custom_ids

    @property
    def id(self) -> str:
        """Id of the batch."""
        return self.batch.id

    async def follow(self) -> AsyncGenerator[Batch]:
        """Yield the batch now and after each change, until it has ended and its files are written."""
        last = None
        async with aclosing(self._beats()) as beats:
            async for batch in beats:
                if batch is not last:
                    last = batch
                    yield batch

    async def wait(self) -> Batch:
        """Wait until the batch has ended and its files are written. Return it, however it has ended."""
        async for _ in self._beats():
            pass
        return self.batch

    async def results(self) -> AsyncGenerator[Result]:
        """Yield the result of each line in input order, completed or failed, as soon as it is settled.

        A line that is not settled holds back the results after it. The iterator ends with the batch.

        Raises:
            ResultsMissing: the batch has ended, and some lines have no result. It is raised after the results
                of all others.
        """
        patience = Patience()
        if self._custom_ids is None:
            self._custom_ids = await self._read_custom_ids(patience)
        order = InputOrder(self._custom_ids)
        async with aclosing(self._beats()) as beats:
            async for batch in beats:
                if order.has_settled(batch) or has_ended(batch):
                    async with aclosing(self._settled(order, patience)) as settled:
                        async for result in settled:
                            yield result
        order.check(self.batch)

    async def retry_failed(
        self, codes: Iterable[str] | None = None, *, completion_window: str | None = None
    ) -> "AsyncJob":
        """Create a batch from the failed lines of this batch, which has ended, and return its job.

        A batch can be retried once. A repeated call returns the same new batch.

        Args:
            codes: retry only lines with these error codes, as in `LineError.code`; None for all failed lines.
            completion_window: window of the new batch; None for the same length as the window of this batch.

        Raises:
            openai.ConflictError: the batch is live, no line failed so, or it was retried with other codes.
        """
        path, body = batch_path(self.id, "/x/retry"), retry_body(codes, completion_window)
        return AsyncJob(self._client, await self._client.post(path, cast_to=Batch, body=body))

    async def _beats(self) -> AsyncGenerator[Batch]:
        """Yield the batch each time the API sends something.

        This is an event, or a comment that keeps the connection alive after 15 s without an event.
        """
        events, patience = Events(), Patience()
        path = batch_path(self.id, "/x/events")
        while True:
            try:
                async with self._open(path, {}, EVENTS_TIMEOUT_SECONDS, events.connect()) as pieces:
                    async for piece in pieces:
                        patience.reset()
                        self.batch = events.feed(piece) or self.batch
                        yield self.batch
                        if has_ended(self.batch):
                            return
                pause = RECONNECT_SECONDS
            except ERRORS as error:
                pause = patience.pause_after(error)
            await asyncio.sleep(pause)

    async def _settled(self, order: InputOrder, patience: Patience) -> AsyncGenerator[Result]:
        """Yield the results of the next lines, up to the first line that is not settled."""
        while True:
            try:
                async with (
                    aclosing(self._file("completed", order)) as completed,
                    aclosing(self._file("failed", order)) as failed,
                ):
                    files: dict[Status, AsyncIterator[Result]] = {"completed": completed, "failed": failed}
                    heads: dict[Status, Result | None] = {
                        status: await anext(files[status], None) for status in STATUSES
                    }
                    patience.reset()
                    while found := order.next_of(heads):
                        status, result = found
                        order.take(status, result)
                        yield result
                        heads[status] = await anext(files[status], None)
                return
            except BadRequestError:
                if not order.rewind():
                    raise
            except ERRORS as error:
                await asyncio.sleep(patience.pause_after(error))

    async def _file(self, status: Status, order: InputOrder) -> AsyncGenerator[Result]:
        """Yield the results with this status that were not taken, up to the first unsettled line."""
        lines, path = Lines(), batch_path(self.id, "/x/results")
        async with self._open(path, order.parameters(status), RESULTS_TIMEOUT_SECONDS) as pieces:
            async for piece in pieces:
                for line in lines.feed(piece):
                    result = Result.parse(line, failed=status == "failed")
                    if not order.is_taken(result):
                        yield result

    async def _read_custom_ids(self, patience: Patience) -> list[str]:
        """Return the custom ids in the input file."""
        while True:
            lines = Lines()
            try:
                path = f"/files/{self.batch.input_file_id}/content"
                async with self._open(path, {}, RESULTS_TIMEOUT_SECONDS) as pieces:
                    read = [custom_id_of(line) async for piece in pieces for line in lines.feed(piece)]
                read.append(custom_id_of(lines.rest()))
                return [custom_id for custom_id in read if custom_id is not None]
            except ERRORS as error:
                await asyncio.sleep(patience.pause_after(error))

    @asynccontextmanager
    async def _open(
        self,
        path: str,
        parameters: Mapping[str, object],
        timeout_seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Context manager that sends a GET request. It yields an iterator over the bytes of the response."""
        stream = await self._client.get(
            path,
            cast_to=object,
            options={"params": parameters, "headers": headers or {}, "timeout": timeout_seconds},
            stream=True,
            stream_cls=AsyncStream[object],
        )
        async with stream:
            yield stream.response.aiter_bytes()


class AsyncJobGroup(AsyncJob):
    """A group of batches to follow as one job: the parts of an input that is too large for one batch.

    Attributes:
        batch: sums over the group, as the API has shown its batches last. Its id is the id of the group.
        jobs: jobs of the parts, in the order of the requests.
    """

    def __init__(self, group: str, jobs: "list[AsyncJob]") -> None:
        self.jobs, self._group = jobs, group
        self.batch = self._summed()

    async def follow(self) -> AsyncGenerator[Batch]:
        """Yield the sums now and after changes, until all batches have ended and their files are written.

        The batches are followed one after another.
        """
        for job in self.jobs:
            async with aclosing(job.follow()) as batches:
                async for _ in batches:
                    self.batch = self._summed()
                    yield self.batch

    async def wait(self) -> Batch:
        """Wait until all batches have ended and their files are written. Return the sums."""
        async for _ in self.follow():
            pass
        return self.batch

    async def results(self) -> AsyncGenerator[Result]:
        """Yield the result of each line in the order of the requests, as `AsyncJob.results` does."""
        for job in self.jobs:
            async with aclosing(job.results()) as results:
                async for result in results:
                    yield result
            self.batch = self._summed()

    async def retry_failed(
        self, codes: Iterable[str] | None = None, *, completion_window: str | None = None
    ) -> "AsyncJob":
        """Not possible for a group: retry the batches whose lines failed, which are in `jobs`.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"{self.id} is several batches: call retry_failed of those in `jobs`.")

    def _summed(self) -> Batch:
        return summed(self._group, [job.batch for job in self.jobs])
