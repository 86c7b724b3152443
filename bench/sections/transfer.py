"""Section of the benchmark: upload and download of the largest input file, compared with a copy of its bytes.

It also measures the memory of the API.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import psutil

from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import RunningStack, forget_peak, peak_mib, running_stack

_MIB = 1024 * 1024
_SECONDS = 10.0
_BOUNDARY = "batchwright-bench"
_HEAD = (
    f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="input.jsonl"\r\n\r\n'
).encode()
_TAIL = f"\r\n--{_BOUNDARY}--\r\n".encode()
_LINE = b'{"custom_id": "a", "body": {}}\n'


class _File(msgspec.Struct):
    id: str


@dataclass(frozen=True)
class _Round:
    up_seconds: float
    down_seconds: float
    copy_seconds: float
    up_mib: float
    down_mib: float


def measure(options: SectionOptions) -> list[Figure]:
    size = options.size(200, 8) * _MIB
    # Nothing listens on this port, so no request is sent.
    with running_stack(options.folder / "transfer", "http://127.0.0.1:9", in_flight=1, workers=0) as stack:
        _transfer(stack, _MIB, options.folder)  # warm-up
        rounds = [_reported(options, _transfer(stack, size, options.folder)) for _ in options.turns(_SECONDS)]
    return [
        Figure("transfer.up_mib", "memory above an idle API, of an upload",
               [one.up_mib for one in rounds], "MiB", Target(64.0)),
        Figure("transfer.down_mib", "memory above an idle API, of a download",
               [one.down_mib for one in rounds], "MiB", Target(64.0)),
        Figure("transfer.up_seconds", "seconds up", [one.up_seconds for one in rounds], "s"),
        Figure("transfer.down_seconds", "seconds down", [one.down_seconds for one in rounds], "s"),
        Figure("transfer.up_of_copying", "upload, times writing the same to the disk",
               [one.up_seconds / one.copy_seconds for one in rounds]),
    ]  # fmt: skip


def _transfer(stack: RunningStack, size: int, folder: Path) -> _Round:
    api = psutil.Process(stack.pids.api[0])
    with httpx.Client(base_url=stack.api, trust_env=False, timeout=300.0) as http:
        up_from, up_began = _idle(api), time.perf_counter()
        headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
        answer = http.post("/v1/files", content=_form(size), headers=headers).raise_for_status()
        up_seconds, up_mib = time.perf_counter() - up_began, peak_mib(api) - up_from
        file = msgspec.json.decode(answer.content, type=_File)
        down_from, down_began = _idle(api), time.perf_counter()
        with http.stream("GET", f"/v1/files/{file.id}/content") as content:
            received = sum(len(piece) for piece in content.raise_for_status().iter_bytes())
        down_seconds, down_mib = time.perf_counter() - down_began, peak_mib(api) - down_from
        http.delete(f"/v1/files/{file.id}").raise_for_status()
    if received < size:
        raise SystemExit(f"only {received} of {size} bytes came back")
    return _Round(up_seconds, down_seconds, _copy(size, folder / "copy"), up_mib, down_mib)


def _idle(process: psutil.Process) -> float:
    """Return the memory in MiB of an idle process, and reset its recorded peak memory."""
    forget_peak(process)
    return process.memory_info().rss / _MIB


def _form(size: int) -> Iterator[bytes]:
    """Yield the parts of an upload form with a file of `size` bytes.

    httpx sends an iterator in chunks, without a known length.
    """
    yield _HEAD
    yield from _lines(size)
    yield _TAIL


def _lines(size: int) -> Iterator[bytes]:
    piece = _LINE * (256 * 1024 // len(_LINE))
    for _ in range(size // len(piece)):
        yield piece
    rest = size % len(piece)
    yield _LINE * (rest // len(_LINE)) + b"\n" * (rest % len(_LINE))


def _copy(size: int, path: Path) -> float:
    began = time.perf_counter()
    with path.open("wb") as file:
        file.writelines(_lines(size))
    path.unlink()
    return time.perf_counter() - began


def _reported(options: SectionOptions, one: _Round) -> _Round:
    options.report(f"{one.up_seconds:.2f} s up, {one.down_seconds:.2f} s down, {one.up_mib:.0f} MiB more")
    return one


SECTION = Section(
    "transfer",
    "Files up and down",
    "200 MiB as one multipart form without an announced length, and its download, over one connection to an "
    "API on this machine that stores in a directory.",
    0.25,
    measure,
)
