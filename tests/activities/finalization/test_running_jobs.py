"""Jobs of lines that end without a result are cancelled at their backends, if no slice has done it."""

from typing import Any

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from batchwright.activities.execution.slice_state.line_queue import LineAttempt, SubmittedJob
from batchwright.contracts.errors import LineCode
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import OutcomeUnknown
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from tests.activities.execution.backend_jobs.job_server import JobServer, config_of
from tests.activities.finalization.settled_batch import SettledBatch


def attempt(
    batch: SettledBatch, n: int, job: str = "", *, jobs: int = 0, url: str = "http://backend"
) -> SegmentRecord:
    """Return the stored record of an attempt of line n, with the id of a running job unless
    `job` is empty.
    """
    running = SubmittedJob(id=job, upstream=f"{url} {batch.models[n % 2]}", since=0.0) if job else None
    kind = RecordKind.SUBMITTED if job else RecordKind.ATTEMPT
    payload = LineAttempt(job=running, jobs=jobs).model_dump_json().encode()
    return SegmentRecord(kind, batch.lines[n].offset, payload)


@pytest.mark.parametrize(
    ("status", "code"),
    [(BatchStatus.EXPIRED, LineCode.BUDGET_EXCEEDED), (BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED)],
)
async def test_only_jobs_that_still_run_are_cancelled(status: BatchStatus, code: LineCode) -> None:
    server, batch = JobServer(config_of()), SettledBatch(lines=7)
    batch.routers = server.execution.backends
    await batch.prepare()
    await batch.put(
        [
            *(attempt(batch, 0, "has-a-result"), batch.success(0)),
            *(attempt(batch, 1), attempt(batch, 1, "runs")),
            *(attempt(batch, 2, "has-ended"), attempt(batch, 2, jobs=1)),
            *(attempt(batch, 3, "first"), attempt(batch, 3, jobs=1), attempt(batch, 3, "second", jobs=1)),
            attempt(batch, 4, "elsewhere", url="http://no-longer-there"),
        ]
    )
    await batch.finalize(batch.request(status, code))
    assert sorted(server.cancelled) == ["runs", "second"]
    assert await batch.ids("error") == [f"line-{n}" for n in range(1, 7)]
    ended = [("a", "poll", "given_up"), ("b", "poll", "given_up")]
    assert sum(batch.metrics.jobs_ended.labels(*labels).value for labels in ended) == 2


async def test_jobs_are_cancelled_although_the_worker_does_not_hear_that_the_batch_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker loses its connection while the database stores the end. The activity's next attempt finds
    that the batch has ended.
    """
    server, batch = JobServer(config_of()), SettledBatch(lines=2)
    batch.routers = server.execution.backends
    finish = batch.database.batch_ends.finish

    async def unheard(*args: Any) -> None:
        await finish(*args)
        raise OutcomeUnknown("the connection broke")

    await batch.prepare()
    await batch.put([attempt(batch, 1, "runs")])
    request = batch.request(BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED)
    monkeypatch.setattr(batch.database.batch_ends, "finish", unheard)
    with pytest.raises(ApplicationError):
        await batch.finalize(request)
    monkeypatch.undo()
    assert (await batch.finalize(request)).status is BatchStatus.CANCELLED
    assert server.cancelled == ["runs"]


async def test_a_batch_ends_with_its_files_although_its_jobs_cannot_be_cancelled() -> None:
    server, batch = JobServer(config_of()), SettledBatch(lines=2)
    batch.routers = server.execution.backends

    async def unreachable(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("away")

    server.execution.answer = unreachable
    await batch.prepare()
    await batch.put([attempt(batch, 1, "runs")])
    result = await batch.finalize(batch.request(BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED))
    assert (result.status, result.failed) == (BatchStatus.CANCELLED, 2)
