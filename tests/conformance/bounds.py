"""Checks of an operator's limits and policies with the official Python client, on a stack with small
limits.
"""

import pytest
from openai import APIStatusError
from openai.types import Batch, FileObject

from batchwright.contracts.terms import Endpoint
from tests.conformance.contract import Api, Table
from tests.conformance.places import PART_BYTES, TIGHT
from tests.conformance.requests import CONTENT, done, jsonl, sent
from tests.conformance.tenants import codes
from tests.e2e.batches import chat_line, chat_lines, ended
from tests.e2e.stack import MODELS

TABLE = Table("tight")
LINES, LINE_BYTES, INPUTS, FILE_BYTES = (
    int(TIGHT[f"BATCHWRIGHT_{name}"])
    for name in (
        "MAX_LINES",
        "MAX_LINE_BYTES",
        "MAX_EMBEDDING_INPUTS",
        "MAX_BATCH_FILE_BYTES",
    )
)


def embedding(custom_id: str, inputs: int) -> dict[str, object]:
    url = Endpoint.EMBEDDINGS.value
    body = {"model": MODELS[0], "input": ["hello"] * inputs}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


async def embedded(api: Api, *inputs: int) -> Batch:
    file = await sent(api.client, jsonl([embedding(f"e{n}", count) for n, count in enumerate(inputs)]))
    batch = await api.client.batches.create(
        input_file_id=file.id, endpoint=Endpoint.EMBEDDINGS.value, completion_window="24h"
    )
    return await ended(api.client, batch.id)


@TABLE.row("Results", "if batches may have only one model, each line for another is `mismatched_model`")
async def one_model(api: Api) -> None:
    batch = await done(api.client, jsonl(chat_lines(MODELS[:2], each=2)))
    assert (batch.status, batch.output_file_id) == ("failed", None)
    assert codes(batch) == [("mismatched_model", "body.model", 2), ("mismatched_model", "body.model", 4)]
    assert (await done(api.client)).status == "completed"


@TABLE.row("Results", "with strict models, a model that no backend serves fails the batch: `model_not_found`")
async def strict_models(api: Api) -> None:
    batch = await done(api.client, jsonl([chat_line(name, "nobody-serves-this") for name in "ab"]))
    assert (batch.status, batch.error_file_id) == ("failed", None)
    assert codes(batch) == [("model_not_found", "body.model", line) for line in (1, 2)]
    [first, _] = (batch.errors and batch.errors.data) or []
    assert first.message == "The provided model 'nobody-serves-this' is not supported by the Batch API."


@TABLE.row("Results", "the line that exceeds the limit of embedding inputs is `too_many_embedding_inputs`")
async def inputs(api: Api) -> None:
    over = await embedded(api, INPUTS - 1, 1, 1, 1)
    assert (over.status, codes(over)) == ("failed", [("too_many_embedding_inputs", "body.input", 3)])
    assert (await embedded(api, INPUTS - 1, 1)).status == "completed"


@TABLE.row("Results", "a line with too many bytes is `line_too_long`; the lines after it are still checked")
async def long_lines(api: Api) -> None:
    line, long = chat_line("a", MODELS[0]), chat_line("b", MODELS[0], "x" * LINE_BYTES)
    batch = await done(api.client, jsonl([line, long, line]))
    assert batch.status == "failed"
    assert codes(batch) == [("line_too_long", None, 2), ("duplicate_custom_id", "custom_id", 3)]


@TABLE.row("Results", "more requests than a batch may have are `too_many_tasks`, without a line")
async def many_lines(api: Api) -> None:
    over = await done(api.client, jsonl(chat_lines(MODELS[:1], each=LINES + 1)))
    assert (over.status, codes(over)) == ("failed", [("too_many_tasks", None, None)])
    most = await done(api.client, jsonl(chat_lines(MODELS[:1], each=LINES)))
    assert most.request_counts is not None
    assert (most.status, most.request_counts.completed) == ("completed", LINES)


@TABLE.row("Files", "a file or part that is larger than allowed is 413 and leaves nothing behind")
async def too_large(api: Api) -> None:
    async def send(size: int) -> FileObject:
        return await sent(api.client, CONTENT + b"\n" * (size - len(CONTENT)))

    before = [file.id async for file in api.client.files.list()]
    with pytest.raises(APIStatusError, match=f"at most {FILE_BYTES} bytes") as file:
        await send(FILE_BYTES + 1)
    upload = await api.client.uploads.create(
        bytes=PART_BYTES, filename="a.jsonl", mime_type="application/jsonl", purpose="batch"
    )
    with pytest.raises(APIStatusError, match=f"at most {PART_BYTES} bytes") as part:
        await api.client.uploads.parts.create(upload.id, data=b"x" * (PART_BYTES + 1))
    for refused, param in ((file.value, "file"), (part.value, "data")):
        assert (refused.status_code, refused.type, refused.param) == (413, "invalid_request_error", param)
    assert [file.id async for file in api.client.files.list()] == before
    assert (await send(FILE_BYTES)).bytes == FILE_BYTES
