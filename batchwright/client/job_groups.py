# Written by `python -m tests.unit.client.synchronous` from async_job_groups.py: change that file.
"""Synchronous groups of jobs: the parts of an input that is too large for one batch."""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import TypeVar

from openai import APIStatusError, ConflictError, OpenAI
from openai.types import Batch

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
from batchwright.client.jobs import Job
from batchwright.client.results import Result

_Done = TypeVar("_Done")


class JobGroup(Job):
    """Job of a group: several batches with the requests of one input that is too large for a single batch.

    Attributes:
        batch: sums over the batches of the group, as the API last showed them. Its id is the id of the group.
        jobs: one job per batch, in the order of the requests.
    """

    def __init__(self, client: OpenAI, group: str, jobs: "list[Job]") -> None:
        self._client, self._group, self.jobs = client, group, jobs
        self.batch = self._summed()

    def follow(self) -> Generator[Batch]:
        """Yield the state of the whole group now, and again after changes, until all batches have ended.

        The state is a `Batch` whose counts are the sums of the counts of all batches in the group. The last
        state is yielded when the files of all batches are written.

        Only one batch is watched at a time: first the first batch until its end, then the next one. The
        counts of a batch that is not watched yet are those that the API showed last.
        """
        for job in self.jobs:
            with closing(job.follow()) as batches:
                for _ in batches:
                    self.batch = self._summed()
                    yield self.batch

    def wait(self) -> Batch:
        """Wait until all batches have ended and their files are written. Return the sums over the group."""
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
    ) -> "JobGroup":
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
        self._refresh()
        check_all_ended(self._group, [job.batch for job in self.jobs])
        ids = with_failed_lines([job.batch for job in self.jobs], wanted)
        failed = [job for job in self.jobs if job.id in ids]
        if not failed:
            why = "" if wanted is None else f" with {' or '.join(wanted)}"
            raise ValueError(f"{self.id} has no line that failed{why}.")
        retry = partial(Job.retry_failed, codes=wanted, completion_window=completion_window)
        return JobGroup(self._client, self._group, self._each(failed, retry))

    def pause(self) -> Batch:
        """Pause the batches that have not ended, as `Job.pause` does. Return the sums over the group.

        Raises:
            PartsFailed: the API rejected the call for some of the batches.
        """
        return self._change_live(Job.pause)

    def resume(self, *, completion_window: str | None = None) -> "JobGroup":
        """Resume the batches that are not completed, as `Job.resume` does. Return the new group.

        Raises:
            PartsFailed: the API rejected the call for some of the batches.
        """
        self._refresh()
        jobs = [job for job in self.jobs if job.batch.status != "completed"]
        resume = partial(Job.resume, completion_window=completion_window)
        resumed = dict(zip((job.id for job in jobs), self._each(jobs, resume), strict=True))
        return JobGroup(self._client, self._group, [resumed.get(job.id, job) for job in self.jobs])

    def cancel(self) -> Batch:
        """Cancel the batches that have not ended, and return the sums over the group.

        Results that the batches already have are kept.

        Raises:
            PartsFailed: the API rejected the call for some of the batches.
        """
        return self._change_live(Job.cancel)

    def delete(self, *, keep_files: bool = False) -> None:
        """Delete all batches of the group, and the batches that retry or resume one of them.

        All these batches must have ended. If the call fails for some batches, call the method again to delete
        the rest.

        Args:
            keep_files: True to keep the output and error files.

        Raises:
            ValueError: a batch has not ended. Nothing is deleted.
            PartsFailed: the API rejected the call for some of the batches.
        """
        batches = group_batches(self._client, self._group)
        check_all_ended(self._group, batches)
        jobs = [Job(self._client, batch) for batch in batches]
        self._each(jobs, partial(Job.delete, keep_files=keep_files))

    def _change_live(self, change: Callable[[Job], Batch]) -> Batch:
        """Call `change` for each batch that has not ended. Return the sums over the group."""

        def change_unless_ended(job: Job) -> None:
            try:
                change(job)
            except ConflictError:
                self._read(job)
                if job.batch.status not in ENDED:
                    raise

        self._refresh()
        self._each([job for job in self.jobs if job.batch.status not in ENDED], change_unless_ended)
        return self.batch

    def _refresh(self) -> None:
        """Read all batches again from the API, and update the sums in `batch`."""
        for job in self.jobs:
            self._read(job)
        self.batch = self._summed()

    def _read(self, job: Job) -> None:
        job.batch = self._client.batches.retrieve(job.id)

    def _each(self, jobs: Iterable[Job], action: Callable[[Job], _Done]) -> list[_Done]:
        """Call `action` for each job, and return the results.

        If the API rejects the call for one job, `action` is still called for the other jobs.

        Raises:
            PartsFailed: the API rejected some of the calls.
        """
        done, errors = list[_Done](), dict[str, APIStatusError]()
        for job in jobs:
            try:
                done.append(action(job))
            except APIStatusError as error:
                errors[job.id] = rejection_of(error)
        self.batch = self._summed()
        if errors:
            raise PartsFailed(self.id, errors)
        return done

    def _summed(self) -> Batch:
        return summed(self._group, [job.batch for job in self.jobs])


def group_batches(client: OpenAI, group: str) -> list[Batch]:
    """Return every batch of a group, newest first, including batches that retry or resume one of them."""
    found = list[Batch]()
    while True:
        query = group_query(group, found[-1].id if found else None)
        page = client.get("/batches", cast_to=GroupPage, options={"params": query})
        found += page.data
        if not page.has_more:
            return found
