"""Local disk space of one activity, used by threads that stop when the activity is cancelled."""

from pathlib import Path
from types import TracebackType

from batchwright.storage.spill.scratch_file import ScratchFile
from batchwright.storage.spill.spilled_bytes import SpillSpace


class Spool(ScratchFile):
    """A scratch file for one activity. It also creates sequences of bytes that move to disk when they grow
    too large.

    Attributes:
        new_bytes: creates a growing sequence of bytes, which is deleted when the spool is closed.
        run_in_thread: runs a function in a thread and returns its result (`SpillSpace.run_in_thread`).
        check_stopped: raises SpoolStopped if a call of `run_in_thread` was cancelled. Functions in threads
            must call it regularly.
    """

    def __init__(self, directory: Path | None, purpose: str, memory_bytes: int | None = None) -> None:
        super().__init__(directory, purpose)
        self._space = SpillSpace(directory, purpose, memory_bytes)
        self.new_bytes = self._space.new_bytes
        self.run_in_thread, self.check_stopped = self._space.run_in_thread, self._space.check_stopped

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._space.close()
        super().__exit__(kind, error, trace)

    def write(self, data: bytes | memoryview) -> None:
        self.check_stopped()
        super().write(data)
