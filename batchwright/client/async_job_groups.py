"""Asynchronous groups of jobs: the parts of an input that is too large for one batch."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from openai import APIStatusError, AsyncOpenAI, ConflictError
from openai.types import Batch

from batchwright.client.async_jobs import AsyncJob
from batchwright.client.connection import ENDED
from batchwright.client.groups import (
    GroupPage,
    PartsFailed,
    check_all_ended,
    group_query,
    rejection_of,
    summed,
    with_failed_lines,
)
from batchwright.client.results import Result

_Done = TypeVar("_Done")


class AsyncJobGroup(AsyncJob):
    """Job of a group: several batches with the requests of one input that is too large for a single batch.

    Attributes:
        batch: sums over the batches of the group, as the API last showed them. Its id is the id of the group.
        jobs: one job per batch, in the order of the requests.
    """

    def __init__(self, client: AsyncOpenAI, group: str, jobs: "list[AsyncJob]") -> None:
        self._client, self._group, self.jobs = client, group, jobs
        self.batch = self._summed()

    async def follow(self) -> AsyncGenerator[Batch]:
        """Yield the state of the whole group now, and again after changes, until all batches have ended.

        The state is a `Batch` whose counts are the sums of the counts of all batches in the group. The last
        state is yielded when the files of all batches are written.

        Only one batch is watched at a time: first the first batch until its end, then the next one. The
        counts of a batch that is not watched yet are those that the API showed last.
        """
        for job in self.jobs:
            async with aclosing(job.follow()) as batches:
                async for _ in batches:
                    self.batch = self._summed()
                    yield self.batch

    async def wait(self) -> Batch:
        """Wait until all batches have ended and their files are written. Return the sums over the group."""
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
    ) -> "AsyncJobGroup":
        """Retry the failed lines of each batch in a new batch. Return the new batches as a group.

        Each batch can be retried once. A repeated call returns the same new batches. The returned group has
        the same id as this group, but only the new batches as jobs.

        Args:
            codes: retry only lines with these error codes, as in `LineError.code`; None for all failed lines.
            completion_window: window of the new batches; None for the same length as before.

        Raises:
            ValueError: a batch has not ended, or no line failed with one of the codes.
            PartsFailed: the API rejected the call for some of the batches.
        """
        wanted = None if codes is None else list(codes)
        await self._refresh()
        check_all_ended(self._group, [job.batch for job in self.jobs])
        ids = with_failed_lines([job.batch for job in self.jobs], wanted)
        failed = [job for job in self.jobs if job.id in ids]
        if not failed:
            why = "" if wanted is None else f" with {' or '.join(wanted)}"
            raise ValueError(f"{self.id} has no line that failed{why}.")
        retry = partial(AsyncJob.retry_failed, codes=wanted, completion_window=completion_window)
        return AsyncJobGroup(self._client, self._group, await self._each(failed, retry))

    async def pause(self) -> Batch:
        """Pause the batches that have not ended, as `AsyncJob.pause` does. Return the sums over the group.

        Raises:
            PartsFailed: the API rejected the call for some of the batches.
        """
        return await self._change_live(AsyncJob.pause)

    async def resume(self, *, completion_window: str | None = None) -> "AsyncJobGroup":
        """Resume the batches that are not completed, as `AsyncJob.resume` does. Return the new group.

        Raises:
            PartsFailed: the API rejected the call for some of the batches.
        """
        await self._refresh()
        jobs = [job for job in self.jobs if job.batch.status != "completed"]
        resume = partial(AsyncJob.resume, completion_window=completion_window)
        resumed = dict(zip((job.id for job in jobs), await self._each(jobs, resume), strict=True))
        return AsyncJobGroup(self._client, self._group, [resumed.get(job.id, job) for job in self.jobs])

    async def cancel(self) -> Batch:
        """Cancel the batches that have not ended, and return the sums over the group.

        Results that the batches already have are kept.

        Raises:
            PartsFailed: the API rejected the call for some of the batches.
        """
        return await self._change_live(AsyncJob.cancel)

    async def delete(self, *, keep_files: bool = False) -> None:
        """Delete all batches of the group, and the batches that retry or resume one of them.

        All these batches must have ended. If the call fails for some batches, call the method again to delete
        the rest.

        Args:
            keep_files: True to keep the output and error files.

        Raises:
            ValueError: a batch has not ended. Nothing is deleted.
            PartsFailed: the API rejected the call for some of the batches.
        """
        batches = await group_batches(self._client, self._group)
        check_all_ended(self._group, batches)
        jobs = [AsyncJob(self._client, batch) for batch in batches]
        await self._each(jobs, partial(AsyncJob.delete, keep_files=keep_files))

    async def _change_live(self, change: Callable[[AsyncJob], Awaitable[Batch]]) -> Batch:
        """Call `change` for each batch that has not ended. Return the sums over the group."""

        async def change_unless_ended(job: AsyncJob) -> None:
            try:
                await change(job)
            except ConflictError:
                await self._read(job)
                if job.batch.status not in ENDED:
                    raise

        await self._refresh()
        await self._each([job for job in self.jobs if job.batch.status not in ENDED], change_unless_ended)
        return self.batch

    async def _refresh(self) -> None:
        """Read all batches again from the API, and update the sums in `batch`."""
        for job in self.jobs:
            await self._read(job)
        self.batch = self._summed()

    async def _read(self, job: AsyncJob) -> None:
        job.batch = await self._client.batches.retrieve(job.id)

    async def _each(
        self, jobs: Iterable[AsyncJob], action: Callable[[AsyncJob], Awaitable[_Done]]
    ) -> list[_Done]:
        """Call `action` for each job, and return the results.

        If the API rejects the call for one job, `action` is still called for the other jobs.

        Raises:
            PartsFailed: the API rejected some of the calls.
        """
        done, errors = list[_Done](), dict[str, APIStatusError]()
        for job in jobs:
            try:
                done.append(await action(job))
            except APIStatusError as error:
                errors[job.id] = rejection_of(error)
        self.batch = self._summed()
        if errors:
            raise PartsFailed(self.id, errors)
        return done

    def _summed(self) -> Batch:
        return summed(self._group, [job.batch for job in self.jobs])


async def group_batches(client: AsyncOpenAI, group: str) -> list[Batch]:
    """Return every batch of a group, newest first, including batches that retry or resume one of them."""
    found = list[Batch]()
    while True:
        query = group_query(group, found[-1].id if found else None)
        page = await client.get("/batches", cast_to=GroupPage, options={"params": query})
        found += page.data
        if not page.has_more:
            return found
