"""Decide when a worker searches a task queue for slices of certain tenants and batches.

A worker cannot choose a slice: it always gets the next slice of the task queue. In a search, it takes one
more slice, in the hope that the slice belongs to a tenant or batch that has no lines on this worker.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from batchwright.activities.services.worker_slices.held_slices import HeldSlice

_SEEK_SECONDS = 30.0  # pause between two searches for the same tenant or batch
_MAX_SLICES = 16  # with so many slices with lines, no search for a batch that goes first
_MAX_MISSES = 32  # after so many wrong slices in a row, a worker pauses its search for tenants


class _Search(NamedTuple):
    """A running search of one of the three kinds that `SliceSearch` describes.

    Attributes:
        new_tenant: the tenant, if the search is for a tenant without lines on this worker; otherwise empty.
    """

    new_tenant: str


class SliceSearch:
    """The rules that decide when a worker searches one task queue for slices, and which slices it keeps.

    There are three kinds of searches:

    - For a tenant without lines on this worker: at once, and again after each wrong slice (a slice that the
      worker has not searched for). After `_MAX_MISSES` wrong slices in a row, there is a pause of
      `_SEEK_SECONDS`.
    - For another batch of a tenant that has lines on this worker: every `_SEEK_SECONDS`.
    - For a batch that must be sent before the other batches of its tenant: at once, and then every
      `_SEEK_SECONDS`. Without this search, the batch would wait until the worker has sent all its lines.

    Only one search runs at a time. A search ends when the next slice arrives. A new search replaces a running
    search, unless the running search is for a tenant without lines.

    In all methods, `now` is the current time in seconds. `with_lines` are the slices of this queue on this
    worker that have lines to send, or whose lines were not read yet.
    """

    def __init__(self) -> None:
        self._running: _Search | None = None
        self._last_by_tenant: dict[str, float] = {}  # time of the last search for each tenant
        self._last_by_batch: dict[str, float] = {}  # time of the last search for each batch that goes first
        self._misses = 0  # wrong slices in a row, in searches for tenants without lines
        self._no_tenant_before = -math.inf  # set after `_MAX_MISSES` misses
        self._no_further_batch_before = -math.inf  # set at the end of a search for a further batch
        self._tenants_are_checked = self._first_batches_are_checked = False

    def check_again(self) -> None:
        """Record that the waiting batches may have changed, so a search for them may be needed again."""
        self._tenants_are_checked = self._first_batches_are_checked = False

    def must_check_tenants(self, now: float) -> bool:
        """Return True if a call of `start_for_tenant` may start a search now."""
        return not self._tenants_are_checked and now >= self._no_tenant_before

    @property
    def must_check_first_batches(self) -> bool:
        """True if a call of `start_for_first_batch` may start a search now."""
        return not self._first_batches_are_checked

    def start_for_tenant(
        self,
        sendable: Mapping[str, int],
        waiting: Collection[str],
        with_lines: Collection[HeldSlice],
        now: float,
    ) -> bool:
        """Start a search if this worker has no lines of a batch that has lines to send.

        Return True if the worker must take another slice for this search. Return False if no search is due.

        Args:
            sendable: number of batches that have lines to send now, by tenant. A tenant is left out if a
                limit of the tenant, or of its API keys, makes its lines wait.
            waiting: all tenants that have lines to send, including those that `sendable` leaves out.
            with_lines: slices on this worker that have lines left to send.
            now: the current time in seconds.
        """
        batches_here = {(held.tenant, held.batch_id) for held in with_lines}
        here = Counter(tenant for tenant, _ in batches_here)
        for tenant, batches in sendable.items():
            if here[tenant] >= batches:
                continue
            last = self._last_by_tenant.get(tenant)
            if last is None and here[tenant]:
                self._last_by_tenant[tenant] = now
            elif here[tenant] and now < self._no_further_batch_before:
                continue
            elif last is None or now - last >= _SEEK_SECONDS:
                self._last_by_tenant[tenant] = now
                self._start("" if here[tenant] else tenant)
                return True
        # A tenant at its cap may be below its cap at any moment, so the time of its last search is kept.
        self._last_by_tenant = {name: at for name, at in self._last_by_tenant.items() if name in waiting}
        self._tenants_are_checked = True
        return False

    def start_for_first_batch(
        self,
        first: Collection[tuple[str, str]],
        waiting: Mapping[str, int],
        with_lines: Sequence[HeldSlice],
        now: float,
    ) -> bool:
        """Start a search if a batch that must be sent first has no slice on this worker.

        Return True if the worker must take another slice for this search. Return False if no search is due.

        Args:
            first: tenant and id of each batch whose lines must be sent before those of other batches.
            waiting: number of batches that have lines to send, by tenant.
            with_lines: slices on this worker that have lines left to send.
            now: the current time in seconds.
        """
        if first and len(with_lines) < _MAX_SLICES:
            batches_here = {held.batch_id for held in with_lines}
            for tenant, batch_id in first:
                last = self._last_by_batch.get(batch_id, -math.inf)
                if (
                    batch_id not in batches_here
                    and waiting.get(tenant, 0) > 1
                    and now - last >= _SEEK_SECONDS
                ):
                    self._last_by_batch[batch_id] = now
                    self._start("")
                    return True
            known = {batch_id for _, batch_id in first}
            self._last_by_batch = {id: at for id, at in self._last_by_batch.items() if id in known}
        self._first_batches_are_checked = True
        return False

    def slice_arrived(
        self,
        found: HeldSlice,
        with_lines: Sequence[HeldSlice],
        first: Collection[tuple[str, str]],
        now: float,
    ) -> bool:
        """Record that a slice has arrived, and end the running search. Return True if the slice is wrong.

        A slice is wrong if the worker was searching for another slice. If no search was running, the result
        is False. If the worker needs more lines, the caller keeps a wrong slice. Otherwise, the caller
        returns a wrong slice to its task queue.

        Args:
            found: the slice that has arrived.
            with_lines: the other slices of the worker that have lines.
            first: tenant and id of each batch of the slice's model that must be sent before other batches.
        """
        search, self._running = self._running, None
        is_wrong = search is not None and self._is_wrong(search, found, with_lines, first, now)
        self._last_by_tenant.pop(found.tenant, None)
        self._last_by_batch.pop(found.batch_id, None)
        return is_wrong

    def _is_wrong(
        self,
        search: _Search,
        found: HeldSlice,
        with_lines: Sequence[HeldSlice],
        first: Collection[tuple[str, str]],
        now: float,
    ) -> bool:
        """Return True if the worker was searching for another slice than `found`.

        Also decide when the next search may start.

        The first rule that applies determines the result:

        - If no other slice of the same tenant has lines on this worker, the slice is right.
        - If the search was for a tenant without lines on this worker, the slice is wrong.
        - In all other cases, the slice is wrong if its batch already has lines on this worker, or if another
          batch must be sent before the batch of the slice.
        """
        if found.tenant not in {held.tenant for held in with_lines}:
            self._misses = 0
            if search.new_tenant:
                self._search_again_for(search.new_tenant)
            return False
        if not search.new_tenant:
            self._no_further_batch_before = now + _SEEK_SECONDS
            has_lines = found.batch_id in {held.batch_id for held in with_lines}
            return has_lines or (bool(first) and (found.tenant, found.batch_id) not in first)
        self._misses += 1
        if self._misses < _MAX_MISSES:
            self._search_again_for(search.new_tenant)
        else:
            self._no_tenant_before, self._misses = now + _SEEK_SECONDS, 0
        return True

    def _start(self, new_tenant: str) -> None:
        if self._running is None or not self._running.new_tenant:
            self._running = _Search(new_tenant)

    def _search_again_for(self, tenant: str) -> None:
        self._last_by_tenant.pop(tenant, None)
        self._tenants_are_checked = False
