"""Runs the inputs of a folder as batches of the API."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from batchwright.starter.batch_output import count_text, waiting_text
from batchwright.starter.client import Client
from batchwright.starter.client_errors import ClientError
from batchwright.starter.folder.dropped_files import NAME_TAKEN, DroppedFiles
from batchwright.starter.folder.input_batches import DENIED, BatchOptions, InputBatches
from batchwright.starter.folder.input_files import FileName, InputDirectory, InputFailed, printable
from batchwright.starter.folder.input_states import InputFolder, State

_ROUND_SECONDS = 1.0
_CALLS_PER_ROUND = 20  # maximum inputs to start, and maximum batches to poll
_RETRY_SECONDS = 30.0  # for an input that cannot be moved or stored, or after an error of the API


@dataclass
class _Running:
    """An input whose batch exists. `shown` is the state of the batch that was last shown to the user."""

    batch_id: str
    shown: str = ""


class _Postponed(NamedTuple):
    """The reason for a failed attempt to start, poll or move an input, and the time of the next attempt.

    Attributes:
        why: the reason, as text for the user.
        until: time of the next attempt, in seconds (monotonic).
        is_immovable: True if the input's directory could not be written or moved. False if the API had an
            internal error, or if the input is larger than the tenant's remaining storage.
    """

    why: str
    until: float
    is_immovable: bool


class FolderRunner:
    """A runner that creates a batch for each input in a folder, and writes the results of the batch.

    When a user drops a file into the folder, the file is moved into a directory of its own. This directory is
    an input. The folder has a subdirectory for each state of inputs, such as `processing` or `failed`. To
    change the state of an input, the runner moves the input to another subdirectory. The state of the batch
    is stored by the API. If the process is killed, a later process can therefore continue.

    Args:
        say: function that shows one line to the user, for example when an input changes its state.
    """

    def __init__(
        self, folder: InputFolder, client: Client, options: BatchOptions, say: Callable[[str], None]
    ) -> None:
        self._folder, self._say = folder, say
        self._batches = InputBatches(client, options)
        self._dropped = DroppedFiles(folder, say)
        self._running: dict[str, _Running] = {}
        self._postponed: dict[tuple[State, str], _Postponed] = {}
        self._storage_left, self._storage_left_until = 0, 0.0  # known until that time (monotonic)
        self._outage = ""
        self._failed = 0

    @property
    def running(self) -> int:
        """The number of inputs whose batches have not ended."""
        return len(self._running)

    @property
    def has_failures(self) -> bool:
        """True if an input has failed or is postponed, or if a dropped file could not become an input."""
        return bool(self._failed or self._dropped.failed or self._postponed)

    def run(self, *, once: bool) -> None:
        """Run inputs as batches until the process ends.

        If `once` is True, return when all inputs have ended or cannot be moved.

        Raises:
            ClientError: the API denies access. The inputs stay in their states.
        """
        while not self.round() or not once:
            time.sleep(_ROUND_SECONDS)

    def round(self) -> bool:
        """Do one round: turn dropped files into inputs, poll the batches, and start inputs.

        Return True if nothing is left to do: all inputs have ended or cannot be moved, and all dropped files
        were complete.

        Raises:
            ClientError: the API denies access. The inputs stay in their states.
        """
        incomplete = self._dropped.queue_complete()
        outages = [self._run_phase(phase) for phase in (self._poll, self._start_inputs)]
        outage = next(filter(None, outages), "")
        if outage != self._outage:
            self._outage = outage
            self._say(outage or "The API accepts requests again.")
        left = {
            (state, name) for state in (State.PROCESSING, State.READY) for name in self._folder.names(state)
        }
        self._postponed = {place: input for place, input in self._postponed.items() if place in left}
        immovable = {place for place, input in self._postponed.items() if input.is_immovable}
        return not incomplete and left <= immovable

    def _run_phase(self, phase: Callable[[], None]) -> str:
        """Call `phase`, the part of a round that polls batches or starts inputs.

        If the API accepts no requests now, for example because it is unavailable, return the reason.
        Otherwise, return "".

        Raises:
            ClientError: a request failed for a reason that is not temporary: the API denies access.
        """
        try:
            phase()
        except ClientError as error:
            if not error.is_transient:
                raise
            return str(error)
        return ""

    def _poll(self) -> None:
        present = set(self._folder.names(State.PROCESSING))
        self._running = {name: running for name, running in self._running.items() if name in present}
        for name in list(self._running)[:_CALLS_PER_ROUND]:
            self._running[name] = self._running.pop(name)  # the next round begins with the others
            self._attempt(name, self._poll_batch)

    def _start_inputs(self) -> None:
        """Create the batches of inputs, or find the batches that an earlier process has created.

        First take the inputs in the state `processing`, then the queued inputs. Sort each group by name.
        """
        started = 0
        for state in (State.PROCESSING, State.READY):
            for name in self._folder.names(state):
                if started == _CALLS_PER_ROUND:
                    return
                if not self._is_due(state, name) or (state is State.PROCESSING and name in self._running):
                    continue
                if state is State.READY and self._exceeds_storage(name):
                    continue
                started += 1
                if state is State.PROCESSING or self._claim(name):
                    self._attempt(name, self._start)

    def _claim(self, name: str) -> bool:
        """Move the queued input `name` to the running inputs, and return True.

        - If another input already has this name, move the queued input to the failed inputs, and return
          False.
        - If the input cannot be moved now, postpone the input, and return False.
        """
        state = self._folder.state_of(name)
        if state is not State.READY:
            self._fail(name, State.READY, NAME_TAKEN.format(state=state))
            return False
        try:
            self._folder.move(name, State.READY, State.PROCESSING)
        except OSError as error:
            why = f"cannot be moved to {State.PROCESSING}: {error.strerror or error}"
            self._postpone(State.READY, name, why, is_immovable=True)
            return False
        return True

    def _is_due(self, state: State, name: str) -> bool:
        postponed = self._postponed.get((state, name))
        return postponed is None or time.monotonic() >= postponed.until

    def _exceeds_storage(self, name: str) -> bool:
        """Return True if the queued input `name` is too large for the tenant's remaining storage.

        Do not upload such an input, because the API would reject the file at the end of the upload. The
        remaining storage is known for `_RETRY_SECONDS` after the API has rejected an input as too large. If
        the remaining storage is not known, return False.
        """
        if time.monotonic() >= self._storage_left_until:
            return False
        with suppress(OSError), self._folder.directory(State.READY, name) as directory:
            return (directory.size(FileName.INPUT) or 0) > self._storage_left
        return False

    def _attempt(self, name: str, step: Callable[[InputDirectory], None]) -> None:
        """Create or poll the batch of the running input `name`.

        - If the input is postponed to a later time, do nothing.
        - If the input fails, move the input to the failed inputs.
        - If the API has an internal error, or the tenant's storage is too small, postpone the input.

        Args:
            step: function that creates or polls the batch.

        Raises:
            ClientError: the API accepts no requests now, or denies access.
        """
        if not self._is_due(State.PROCESSING, name):
            return
        try:
            with self._folder.directory(State.PROCESSING, name) as directory:
                step(directory)
            self._postponed.pop((State.PROCESSING, name), None)
        except InputFailed as error:
            self._fail(name, State.PROCESSING, str(error))
        except OSError as error:
            self._fail(
                name,
                State.PROCESSING,
                f"The directory of the input cannot be used: {error.strerror or error}.",
            )
        except ClientError as error:
            is_too_large = error.storage_left is not None  # smaller inputs may fit
            if (error.is_transient and not is_too_large) or error.status in DENIED:
                raise
            if error.is_rejected and not is_too_large:
                self._fail(name, State.PROCESSING, str(error))
            else:
                self._postpone(State.PROCESSING, name, str(error), is_immovable=False)
            if error.storage_left is not None:
                self._storage_left = error.storage_left
                self._storage_left_until = time.monotonic() + _RETRY_SECONDS

    def _start(self, directory: InputDirectory) -> None:
        started = self._batches.start(directory)
        self._running[directory.name] = _Running(started.batch_id)
        self._report(
            directory.name, f"{'created' if started.is_new else 'continues with'} {started.batch_id}"
        )

    def _poll_batch(self, directory: InputDirectory) -> None:
        """Get the state of an input's batch from the API, and show the state to the user if it has changed.

        If the batch has ended and its files are written, write the input's results and move it to `OUTPUT`.
        """
        running = self._running[directory.name]
        batch = self._batches.get(running.batch_id)
        if batch.status.is_terminal and not batch.x_batchwright.files_pending:
            self._batches.write_results(directory, batch)
            self._folder.move(directory.name, State.PROCESSING, State.OUTPUT)
            del self._running[directory.name]
            self._report(directory.name, f"{count_text(batch.request_counts)}, completed")
            return
        why = "".join(f"; {waiting_text(each)}" for each in batch.waiting)
        state = f"{batch.status.value}{', paused' if batch.x_batchwright.paused else ''}{why}"
        if state != running.shown:
            running.shown = state
            counts = f"{count_text(batch.request_counts)}, " if batch.request_counts.total else ""
            self._report(directory.name, f"{counts}{state}")

    def _fail(self, name: str, state: State, reason: str) -> None:
        """Write `reason` into the directory of an input, and move the input to the failed inputs.

        `state` is the state of the input before the move.
        """
        try:
            with self._folder.directory(state, name) as directory:
                directory.write(FileName.REASON, [reason.encode(errors="replace") + b"\n"])
            moved = self._folder.move_to_failed(name, state, name)
        except FileNotFoundError:  # a user has removed the input
            return
        except (OSError, InputFailed) as error:
            why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            self._postpone(
                state, name, f"{reason} It cannot be moved to {State.FAILED}: {why}", is_immovable=True
            )
            return
        self._failed += 1
        self._postponed.pop((state, name), None)
        if state is State.PROCESSING:
            self._running.pop(name, None)
        self._report(moved, f"failed: {reason.replace(chr(10), ' ')}")

    def _postpone(self, state: State, name: str, why: str, *, is_immovable: bool) -> None:
        """Postpone an input for `_RETRY_SECONDS`, and show the user the reason `why`.

        Args:
            is_immovable: True if the input's directory could not be written or moved.
        """
        before = self._postponed.get((state, name))
        self._postponed[state, name] = _Postponed(why, time.monotonic() + _RETRY_SECONDS, is_immovable)
        if before is None or before.why != why:
            self._report(name, why)

    def _report(self, name: str, text: str) -> None:
        self._say(f"{printable(name)}: {text}")
