# Written by `python -m tests.unit.client.synchronous` from async_group_handle.py: change that file.
"""Synchronous handle of a group: the batches of an input that is too large for one batch."""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import TypeVar

from openai import APIStatusError, ConflictError, OpenAI
from openai.types import Batch

from batchwright.client.batch_handle import BatchHandle
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


class GroupHandle(BatchHandle):
    """A handle of a group: several batches with the requests of one input that is too large for one batch.

    Attributes:
        batch: one `Batch` for the whole group, with the group's id. Each count is the sum of this count over
            all batches of the group, as the API last showed these batches.
        handles: one handle per batch, in the order of the requests.
    """

    def __init__(self, client: OpenAI, group: str, handles: "list[BatchHandle]") -> None:
        self._client, self._group, self.handles = client, group, handles
        self.batch = self._summed()

    def follow(self) -> Generator[Batch]:
        """Yield the state of the whole group now and after changes, until all batches have ended.

        The state is a `Batch` whose counts are the sums of the counts of all batches in the group. The last
        state is yielded when the files of all batches are written.

        The batches are followed one after another. While a batch is being followed, the counts of the batches
        after this batch may be old.
        """
        for handle in self.handles:
            with closing(handle.follow()) as batches:
                for _ in batches:
                    self.batch = self._summed()
                    yield self.batch

    def wait(self) -> Batch:
        """Wait until all batches have ended and their files are written. Return one `Batch` whose counts are
        the sums over the group.
        """
        for _ in self.follow():
            pass
        return self.batch

    def results(self) -> Generator[Result]:
        """Yield the results of all lines of the group, in the order of the requests.

        The result of a line is yielded when this line and all lines before it have final results. The
        iteration ends when all batches of the group have ended.

        Raises:
            ResultsMissing: a batch has ended, and some of its lines have no result. All results before the
                first of these lines have been yielded. To get the results of later batches, call `results` of
                each later handle in `handles`.
        """
        for handle in self.handles:
            with closing(handle.results()) as results:
                yield from results
            self.batch = self._summed()

    def retry_failed(
        self, codes: Iterable[str] | None = None, *, completion_window: str | None = None
    ) -> "GroupHandle":
        """Retry the failed lines of each batch in a new batch. Return a handle of the new batches.

        Only the first call creates batches. Later calls return a handle of these new batches. The returned
        handle has the id of this group, but its `handles` are only the handles of the new batches.

        Args:
            codes: retry only lines with these error codes, as in `LineError.code`; None for all failed lines.
            completion_window: completion window of the new batches, such as `90m`. If None, each new batch
                gets the same window as the batch that it retries.

        Raises:
            ValueError: a batch has not ended, or no line failed with one of the codes.
            PartsFailed: the API rejected the call for some of the batches.
        """
        wanted = None if codes is None else list(codes)
        self._refresh()
        check_all_ended(self._group, [handle.batch for handle in self.handles])
        ids = with_failed_lines([handle.batch for handle in self.handles], wanted)
        failed = [handle for handle in self.handles if handle.id in ids]
        if not failed:
            why = "" if wanted is None else f" with {' or '.join(wanted)}"
            raise ValueError(f"{self.id} has no line that failed{why}.")
        retry = partial(BatchHandle.retry_failed, codes=wanted, completion_window=completion_window)
        return GroupHandle(self._client, self._group, self._each(failed, retry))

    def pause(self) -> Batch:
        """Pause all batches that have not ended. Return one `Batch` whose counts are the sums over the group.

        Raises:
            PartsFailed: the API rejected the call for some of the batches.
        """
        return self._change_live(BatchHandle.pause)

    def resume(self, *, completion_window: str | None = None) -> "GroupHandle":
        """Resume the batches of the group, and return a new handle of the group.

        - A paused batch continues.
        - If a batch ended before all its lines had a result, a new batch is created that sends the remaining
          lines. In the new handle, this new batch replaces the ended batch.
        - A completed batch stays unchanged.

        Raises:
            PartsFailed: the API rejected the call for some of the batches.
        """
        self._refresh()
        handles = [handle for handle in self.handles if handle.batch.status != "completed"]
        resume = partial(BatchHandle.resume, completion_window=completion_window)
        resumed = dict(zip((handle.id for handle in handles), self._each(handles, resume), strict=True))
        return GroupHandle(
            self._client, self._group, [resumed.get(handle.id, handle) for handle in self.handles]
        )

    def cancel(self) -> Batch:
        """Cancel all batches that have not ended. Return one `Batch` whose counts are the sums over the
        group.

        Results that the batches already have are kept.

        Raises:
            PartsFailed: the API rejected the call for some of the batches.
        """
        return self._change_live(BatchHandle.cancel)

    def delete(self, *, keep_files: bool = False) -> None:
        """Delete all batches of the group, and all batches that retry or resume a batch of the group.

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
        handles = [BatchHandle(self._client, batch) for batch in batches]
        self._each(handles, partial(BatchHandle.delete, keep_files=keep_files))

    def _change_live(self, change: Callable[[BatchHandle], Batch]) -> Batch:
        """Call `change` for each batch that has not ended. Return one `Batch` with the sums of all counts.

        Args:
            change: function that pauses or cancels a batch.
        """

        def change_unless_ended(handle: BatchHandle) -> None:
            try:
                change(handle)
            except ConflictError:
                self._read(handle)
                if handle.batch.status not in ENDED:
                    raise

        self._refresh()
        self._each(
            [handle for handle in self.handles if handle.batch.status not in ENDED], change_unless_ended
        )
        return self.batch

    def _refresh(self) -> None:
        """Read all batches again from the API, and update the counts of `batch`."""
        for handle in self.handles:
            self._read(handle)
        self.batch = self._summed()

    def _read(self, handle: BatchHandle) -> None:
        handle.batch = self._client.batches.retrieve(handle.id)

    def _each(self, handles: Iterable[BatchHandle], action: Callable[[BatchHandle], _Done]) -> list[_Done]:
        """Call `action` for each handle, and return the results in the same order.

        If the API rejects the call for one handle, `action` is still called for the other handles.

        Raises:
            PartsFailed: the API rejected some of the calls.
        """
        done, errors = list[_Done](), dict[str, APIStatusError]()
        for handle in handles:
            try:
                done.append(action(handle))
            except APIStatusError as error:
                errors[handle.id] = rejection_of(error)
        self.batch = self._summed()
        if errors:
            raise PartsFailed(self.id, errors)
        return done

    def _summed(self) -> Batch:
        return summed(self._group, [handle.batch for handle in self.handles])


def group_batches(client: OpenAI, group: str) -> list[Batch]:
    """Return every batch of a group, newest first. Batches that retry or resume one of them are included."""
    found = list[Batch]()
    while True:
        query = group_query(group, found[-1].id if found else None)
        page = client.get("/batches", cast_to=GroupPage, options={"params": query})
        found += page.data
        if not page.has_more:
            return found
