"""Local disk space of one activity, used by threads that stop when the activity is cancelled."""

from pathlib import Path
from types import TracebackType

from batchwright.storage.spill.scratch_file import ScratchFile
from batchwright.storage.spill.spilled_bytes import SpillSpace


class Spool(ScratchFile):
    """A scratch file, and growing sequences of bytes that move to the disk when they become too large.

    Attributes:
        new_bytes: creates a growing sequence of bytes. All sequences are deleted when the spool is closed.
        off_loop: runs a function in a thread and returns its result, as `SpillSpace.off_loop` does.
        check_stopped: raises SpoolStopped after that call was cancelled, as `SpillSpace.check_stopped` does.
    """

    def __init__(self, directory: Path | None, purpose: str, memory_bytes: int | None = None) -> None:
        super().__init__(directory, purpose)
        self._space = SpillSpace(directory, purpose, memory_bytes)
        self.new_bytes = self._space.new_bytes
        self.off_loop, self.check_stopped = self._space.off_loop, self._space.check_stopped

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._space.close()
        super().__exit__(kind, error, trace)

    def write(self, data: bytes | memoryview) -> None:
        self.check_stopped()
        super().write(data)
