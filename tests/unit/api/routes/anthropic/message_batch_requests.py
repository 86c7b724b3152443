"""Requests that create message batches, and functions that end these batches, for tests of their routes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import httpx

from batchwright.api.dependencies import now
from batchwright.contracts.api_objects.anthropic import MessageErrorDetails, MessageErrorObject
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import ErrorCount
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.records import BatchOutcome, FileRow
from batchwright.rules.ids import derived_file_id, request_id
from batchwright.rules.results.output_lines import error_line, result_line
from tests.fakes.api import ApiFixture

if TYPE_CHECKING:
    from anthropic.types.messages import MessageBatch
    from anthropic.types.messages.batch_create_params import Request

PATH = "/v1/messages/batches"
VERSION = {"anthropic-version": "2023-06-01"}
PARAMS = {"model": "llama", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}


def request(custom_id: str, params: object = PARAMS) -> "Request":
    return {"custom_id": custom_id, "params": params}  # pyright: ignore[reportReturnType] - any value is sent


async def created(api: ApiFixture, *custom_ids: str) -> "MessageBatch":
    return await api.anthropic.messages.batches.create(requests=[request(id) for id in custom_ids or ("a",)])


def openai_id(batch: "MessageBatch") -> str:
    return batch.id.removeprefix("msg")


async def ended(
    api: ApiFixture,
    batch: "MessageBatch",
    lines: Mapping[str, LineCode | None],
    status: BatchStatus = BatchStatus.COMPLETED,
) -> None:
    """End the batch. `lines` has the error code of each line by custom id; None for success."""
    batch_id, files = openai_id(batch), dict[str, FileRow | None]()
    row = await api.database.files.get("default", api.order(batch_id).input_file_id)
    assert row is not None
    content = api.storage.objects[row.storage_key]
    ids = {id: request_id(batch_id, content.index(b'{"custom_id":"%b"' % id.encode())) for id in lines}
    done = [
        result_line(ids[id], id, status_code=200, backend_request_id="", body=b'{"id":"m"}')
        for id, code in lines.items()
        if not code
    ]
    failed = [error_line(ids[id], id, code, "why") for id, code in lines.items() if code]
    for kind, content in (("output", done), ("error", failed)):
        row = FileRow(
            id=derived_file_id(batch_id, kind),
            tenant="default",
            purpose="batch_output",
            filename="x",
            bytes=1,
            created_at=now(),
            storage_key=f"{batch_id}/{kind}",
        )
        await api.storage.put(row.storage_key, b"".join(line + b"\n" for line in content))
        files[kind] = row if content else None
    outcome = BatchOutcome(
        status=status,
        completed=len(done),
        failed=len(failed),
        usage=Usage(),
        output=files["output"],
        error=files["error"],
        errors_summary=[ErrorCount(code=code, count=1) for code in lines.values() if code],
    )
    await api.database.batch_ends.finish("default", batch_id, outcome, now())


def error_of(answer: httpx.Response) -> MessageErrorDetails:
    body = MessageErrorObject.model_validate_json(answer.content)
    assert body.request_id == answer.headers["request-id"] == answer.headers["x-request-id"]
    return body.error
