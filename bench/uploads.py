"""`python -m bench.uploads --gib 8`: a file in parts, out of order and in parallel, and down again.

Over loopback to an API that stores in a directory; told are seconds, the API's memory, and whether every
byte is where it belongs. While the parts become a file both are on the disk: twice the size has to be free.
"""

import hashlib
import random
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import httpx
import msgspec
import psutil
import typer

from bench.stack import Stack, forget_peak, peak_mib, running

_MIB = 1024 * 1024
_BLOCK = random.Random(1).randbytes(_MIB)
_BOUNDARY = "batchwright-bench"
_HEAD = (f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="data"; filename="part"\r\n\r\n').encode()
_TAIL = f"\r\n--{_BOUNDARY}--\r\n".encode()
_FORM = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
_DISK_FACTOR = 2.2
_T = TypeVar("_T")


class _Named(msgspec.Struct):
    id: str


class _Completed(msgspec.Struct):
    file: _Named


class Plan(NamedTuple):
    """`parts` of `part_mib` each, `parallel` at once, in an order of their own."""

    parts: int
    part_mib: int
    parallel: int

    @property
    def bytes(self) -> int:
        return self.parts * self.part_mib * _MIB


class Phase(NamedTuple):
    name: str
    seconds: float
    more_mib: float  # than the API held before

    def told(self, size: int) -> str:
        rate = size / _MIB / self.seconds
        return f"{self.name:9}{self.seconds:8.1f} s {rate:8.0f} MiB/s {self.more_mib:+8.1f} MiB of memory"


class Measured:
    """The phases of one upload, and the API's memory in each."""

    def __init__(self, api: psutil.Process) -> None:
        self._api = api
        self.phases: list[Phase] = []

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        forget_peak(self._api)
        held, began = self._api.memory_info().rss / _MIB, time.perf_counter()
        yield
        self.phases.append(Phase(name, time.perf_counter() - began, peak_mib(self._api) - held))


def part(number: int, mib: int) -> Iterator[bytes]:
    """No block is like another, so that one in a wrong place shows."""
    for block in range(mib):
        yield struct.pack(">QQ", number, block) + _BLOCK[16:]


def digests(plan: Plan) -> tuple[str, str]:
    """MD5 and SHA-256 of the file as it should be."""
    md5, sha = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    for number in range(plan.parts):
        for block in part(number, plan.part_mib):
            md5.update(block)
            sha.update(block)
    return md5.hexdigest(), sha.hexdigest()


def upload(stack: Stack, plan: Plan, seed: int) -> list[Phase]:
    """Raises SystemExit where what comes back is not what was sent."""
    md5, sha = digests(plan)
    measured = Measured(psutil.Process(stack.pids.api[0]))
    with httpx.Client(base_url=stack.api, trust_env=False, timeout=3600.0) as http:
        body = {"filename": "large", "purpose": "user_data", "bytes": plan.bytes, "mime_type": "a/b"}
        path = f"/v1/uploads/{_read(http.post('/v1/uploads', json=body), _Named).id}"
        with measured.phase("parts"):
            ids = _send_parts(http, path, plan, seed)
        with measured.phase("complete"):
            done = http.post(path + "/complete", json={"part_ids": ids, "md5": md5})
        file = f"/v1/files/{_read(done, _Completed).file.id}"
        with measured.phase("download"):
            found = _sha_of(http, file + "/content")
        http.delete(file).raise_for_status()
    if found != sha:
        raise SystemExit(f"WRONG: SHA-256 {found} came back, {sha} was sent")
    return measured.phases


def _send_parts(http: httpx.Client, path: str, plan: Plan, seed: int) -> list[str]:
    """Their ids, in the order of the bytes."""
    order = list(range(plan.parts))
    random.Random(seed).shuffle(order)

    def send(number: int) -> str:
        answer = http.post(path + "/parts", content=_form(number, plan.part_mib), headers=_FORM)
        return _read(answer, _Named).id

    with ThreadPoolExecutor(plan.parallel) as threads:
        ids = dict(zip(order, threads.map(send, order), strict=True))
    return [ids[number] for number in range(plan.parts)]


def _form(number: int, mib: int) -> Iterator[bytes]:
    yield _HEAD
    yield from part(number, mib)
    yield _TAIL


def _sha_of(http: httpx.Client, path: str) -> str:
    sha = hashlib.sha256()
    with http.stream("GET", path) as content:
        for piece in content.raise_for_status().iter_bytes():
            sha.update(piece)
    return sha.hexdigest()


def _read(answer: httpx.Response, kind: type[_T]) -> _T:
    if answer.is_error:
        raise SystemExit(f"{answer.request.url}: {answer.status_code} {answer.text}")
    return msgspec.json.decode(answer.content, type=kind)


def run(
    gib: Annotated[float, typer.Option(min=0.01, max=8, help="Size of the file.")] = 8.0,
    part_mib: Annotated[int, typer.Option(min=1, max=64, help="Size of a part.")] = 64,
    parallel: Annotated[int, typer.Option(min=1, help="Parts at once.")] = 4,
    seed: Annotated[int, typer.Option(help="Of the order in which the parts come.")] = 1,
    folder: Annotated[Path | None, typer.Option(help="Where it all is stored; else a temporary one.")] = None,
) -> None:
    """Send a file in parts to an API on this machine, have it joined, and read it again."""
    plan = Plan(max(1, round(gib * 1024 / part_mib)), part_mib, parallel)
    with tempfile.TemporaryDirectory(prefix="batchwright-uploads-", dir=folder) as scratch:
        _check_room(Path(scratch), plan)
        # No backend is asked: nothing listens on the port of discarded bytes.
        with running(Path(scratch) / "stack", "http://127.0.0.1:9", in_flight=1, workers=0) as stack:
            upload(stack, Plan(1, 1, 1), seed)  # what a process needs once
            phases = upload(stack, plan, seed)
    print(
        f"{plan.bytes} bytes in {plan.parts} parts, {parallel} at once, order {seed}: every byte in its place"
    )
    print("\n".join(phase.told(plan.bytes) for phase in phases))


def _check_room(folder: Path, plan: Plan) -> None:
    free, needed = shutil.disk_usage(folder).free / 1024**3, plan.bytes * _DISK_FACTOR / 1024**3
    if free < needed:
        sys.exit(f"{folder} has {free:.0f} GiB free; this takes {needed:.0f}")


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="python -m bench.uploads")


if __name__ == "__main__":
    main()
