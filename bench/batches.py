"""Runs a batch as a user does: upload, create, wait and download."""

import time
from pathlib import Path

import msgspec

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.terms import BatchStatus
from batchwright.starter.client import Client
from bench.stack import RunningStack, cpu_seconds, peak_mib

ENDPOINT = "/v1/chat/completions"
_POLL_SECONDS = 0.05


class WholeBatch(msgspec.Struct, frozen=True):
    """Times and memory of one batch, from the first byte of the upload to the last byte of the download.

    `cpu_seconds` is the CPU time of the API and the workers. `server_cpu_seconds` is the CPU time of Temporal
    and PostgreSQL. `run_seconds` is the time from the creation of the batch until it has completed.
    """

    requests: int
    seconds: float
    upload_seconds: float
    run_seconds: float
    download_seconds: float
    cpu_seconds: float
    worker_cpu_seconds: float
    server_cpu_seconds: float
    worker_peak_mib: float

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


def measure(stack: RunningStack, path: Path, count: int) -> WholeBatch:
    """Run the input file at `path`, which has `count` lines, as one batch. Return its times and memory.

    Raises:
        SystemExit: the batch did not complete all lines.
    """
    ours, workers, servers = stack.ours(), stack.workers(), stack.servers()
    before = cpu_seconds(ours), cpu_seconds(workers), cpu_seconds(servers)
    with Client(stack.api) as client:
        started = time.perf_counter()
        file_id = upload(client, path)
        uploaded = time.perf_counter()
        batch = run_batch(client, file_id, count)
        ended = time.perf_counter()
        download(client, batch, path.with_suffix(".output"), count)
        downloaded = time.perf_counter()
    after = cpu_seconds(ours), cpu_seconds(workers), cpu_seconds(servers)
    return WholeBatch(
        count,
        downloaded - started,
        uploaded - started,
        ended - uploaded,
        downloaded - ended,
        after[0] - before[0],
        after[1] - before[1],
        after[2] - before[2],
        max(peak_mib(worker) for worker in workers),
    )


def upload(client: Client, path: Path) -> str:
    with path.open("rb") as file:
        return client.upload(file, path.name).id


def run_batch(client: Client, file_id: str, count: int) -> BatchObject:
    return wait(client, create(client, file_id).id, count)


def create(client: Client, file_id: str) -> BatchObject:
    return client.create(file_id=file_id, endpoint=ENDPOINT, window="1h", metadata=None)


def wait(client: Client, batch_id: str, count: int, poll_seconds: float = _POLL_SECONDS) -> BatchObject:
    batch = client.batch(batch_id)
    while not batch.status.is_terminal:
        time.sleep(poll_seconds)
        batch = client.batch(batch_id)
    if batch.status is not BatchStatus.COMPLETED or batch.request_counts.completed != count:
        raise SystemExit(f"{batch.id} ended as {batch.status.value} with {batch.request_counts}.")
    return batch


def download(client: Client, batch: BatchObject, path: Path, count: int) -> None:
    """Download the output file of the batch to `path`, check the number of its lines, and delete it.

    Raises:
        SystemExit: the file does not have `count` lines.
    """
    assert batch.output_file_id is not None
    lines = 0
    with path.open("wb") as out, client.content(batch.output_file_id) as pieces:
        for piece in pieces:
            out.write(piece)
            lines += piece.count(b"\n")
    path.unlink()
    if lines != count:
        raise SystemExit(f"the output of {batch.id} has {lines} lines of {count}")
