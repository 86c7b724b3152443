"""What `dev` tells the world in DIR/dev.json, and what it notes for its own next start."""

import os
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

_GRACE_SECONDS = 2.0


class _State(BaseModel):
    model_config = ConfigDict(frozen=True)


class Pids(_State):
    dev: int
    temporal: int
    postgres: int
    simulator: int | None
    api: list[int]
    worker: list[int]


class StackInfo(_State):
    """The line of `dev --json`, and DIR/dev.json."""

    api: str
    temporal: str
    namespace: str
    ui: str
    postgres: str
    simulator: str | None
    data: str
    pids: Pids
    metrics: list[str]  # for Prometheus: of the API, and of every worker


class Note(_State):
    """A process: the pid alone could be another's by now."""

    pid: int
    created: float


class Notes(RootModel[list[Note]]):
    pass


def write_whole(file: Path, text: str) -> None:
    """`file` has the old text or the new one, never a part; it is ours alone, for it may hold a password."""
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)
    unfinished.replace(file)


def note_processes(file: Path, pids: list[int]) -> None:
    """Those of `pids` that live, for `end_leftovers` of a later start."""
    notes: list[Note] = []
    for pid in pids:
        try:
            notes.append(Note(pid=pid, created=psutil.Process(pid).create_time()))
        except psutil.Error:
            continue
    write_whole(file, Notes(notes).model_dump_json())


def end_leftovers(file: Path) -> int:
    """Ends what a killed `dev` left running; how many that were."""
    try:
        notes = Notes.model_validate_json(file.read_text()).root
    except (FileNotFoundError, ValidationError):
        return 0
    left = [process for note in notes if (process := _same(note)) is not None]
    for process in left:
        process.terminate()
    _, stubborn = psutil.wait_procs(left, timeout=_GRACE_SECONDS)
    for process in stubborn:
        process.kill()
    psutil.wait_procs(stubborn, timeout=_GRACE_SECONDS)
    return len(left)


def _same(note: Note) -> psutil.Process | None:
    try:
        process = psutil.Process(note.pid)
        return process if abs(process.create_time() - note.created) < 1.0 else None
    except psutil.Error:
        return None
