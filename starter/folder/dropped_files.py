"""Creates inputs from the files that users drop into the folder.

When a dropped file is complete, it is moved into a directory of its own. This directory is called an input.
Each input is run as one batch.
"""

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from batchwright.starter.folder.input_files import FileName, InputFailed, printable
from batchwright.starter.folder.input_states import InputFolder, State

COMPLETE_AFTER_SECONDS = 3.0
NAME_TAKEN = (
    "There is another input of this name, in {state}. Remove that one, or choose another name. Then drop the "
    "file again."
)


class _Seen(NamedTuple):
    bytes: int
    modified_ns: int
    since: float  # monotonic seconds


class DroppedFiles:
    """A scanner that finds the files that users drop into the folder, and creates an input for each.

    A file counts as complete if it has not changed for `COMPLETE_AFTER_SECONDS`.

    Args:
        say: function that shows one sentence to the user.
        clock: function that returns the time in seconds (monotonic).
    """

    def __init__(
        self, folder: InputFolder, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._say = say
        self._clock = clock
        self._seen: dict[tuple[State | None, str], _Seen] = {}
        self._stuck = set[str]()
        self.failed = 0  # files that were refused or cannot be moved

    def queue_complete(self) -> int:
        """Move complete files to the directory of queued inputs. Return the number of incomplete files."""
        for staged in self._folder.staged():  # a crash has left them
            self._publish(staged)
        seen, self._seen = self._seen, {}
        now = self._clock()
        for place, entry in self._folder.dropped_files():
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # its owner has removed it
                continue
            before = seen.get((place, entry.name))
            stamp = (status.st_size, status.st_mtime_ns)
            since = before.since if before is not None and before[:2] == stamp else now
            if now - since < COMPLETE_AFTER_SECONDS:
                self._seen[place, entry.name] = _Seen(*stamp, since)
            else:
                self._queue_file(place, entry)
        return len(self._seen)

    def _queue_file(self, place: State | None, entry: os.DirEntry[str]) -> None:
        try:
            staged = self._folder.stage(place, entry.name)
        except OSError as error:
            self._report_stuck(entry.name, error.strerror or str(error))
        else:
            self._publish(staged)

    def _publish(self, staged: str) -> None:
        """Move the hidden directory `staged` to the queued inputs.

        - If the directory does not contain a dropped file, delete the directory instead.
        - If another input has the same name, write this reason into the directory, and move the directory to
          the failed inputs instead.
        """
        name = self._folder.staged_name(staged)
        try:
            with self._folder.directory(State.WRITING, staged) as directory:
                has_input, is_refused = directory.exists(FileName.INPUT), directory.exists(FileName.REASON)
                state = self._folder.state_of(name)
                if has_input and state is not None:
                    directory.write(FileName.REASON, [NAME_TAKEN.format(state=state).encode() + b"\n"])
                    is_refused = True
            if not has_input:
                self._folder.discard(staged)
            elif is_refused:
                failed = self._folder.move_to_failed(staged, State.WRITING, name)
                self.failed += 1
                self._say(f"{printable(name)}: its name is taken; moved to failed/{printable(failed)}")
            else:
                self._folder.publish(staged)
        except OSError as error:
            self._report_stuck(name, error.strerror or str(error))
        except InputFailed as error:
            self._report_stuck(name, str(error))

    def _report_stuck(self, name: str, why: str) -> None:
        """Report to the user that the dropped file `name` cannot be moved, with the reason `why`.

        Do this only once for each file. The next `queue_complete` tries again to move the file.
        """
        if name not in self._stuck:
            self._stuck.add(name)
            self.failed += 1
            self._say(f"{printable(name)}: cannot be taken: {why}")
