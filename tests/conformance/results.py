"""Checks of a batch's result files and errors with the official Python client."""

import json

import httpx
import pytest
from openai import BadRequestError, ConflictError
from openai.types import Batch
from pydantic import BaseModel, ConfigDict

from tests.conformance.contract import Api, Table
from tests.conformance.requests import CONTENT, LINES, NOWHERE, created, done, jsonl
from tests.e2e.batches import CHAT, chat_line, chat_lines, ended, until
from tests.e2e.stack import MODELS

TABLE = Table()


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Answer(_Strict):
    status_code: int
    request_id: str
    body: dict[str, object]


class _Error(_Strict):
    code: str
    message: str


class _Line(_Strict):
    id: str
    custom_id: str
    response: _Answer | None
    error: _Error | None


async def lines(api: Api, file_id: str | None) -> list[_Line]:
    """Return the lines of a result file. Check that each has exactly the expected keys."""
    assert file_id is not None
    text = (await api.client.files.content(file_id)).text
    assert text.endswith("\n")
    return [_Line.model_validate_json(line) for line in text.splitlines()]


@TABLE.row("Results", "output lines have exactly OpenAI's keys, in input order, and none is missing")
async def output(api: Api) -> None:
    found = await lines(api, (await done(api.client)).output_file_id)
    assert [line.custom_id for line in found] == [line["custom_id"] for line in LINES]
    for line in found:
        assert line.id.startswith("batch_req_")
        assert line.error is None
        assert line.response is not None
        assert line.response.status_code == 200
        assert line.response.body["object"] == "chat.completion"


class _Failed(_Strict):
    code: str
    model: str
    count: int
    example: dict[str, str]


@TABLE.row("Results", "the batch counts failed lines by code and model, each with an example")
async def errors_summary(api: Api) -> None:
    await api.stack.faults(model=MODELS[1], kind=400, rate=1.0)
    nowhere = chat_line("nowhere", NOWHERE)
    batch = await done(api.client, jsonl([*chat_lines(MODELS[:2], each=2), nowhere]))
    extension = (batch.model_extra or {})["x_batchwright"]
    found = [_Failed.model_validate(each) for each in extension["errors_summary"]]
    assert [(each.code, each.model, each.count) for each in found] == [
        ("http_400", MODELS[1], 2),
        ("model_not_found", NOWHERE, 1),
    ]
    assert found[1].example["custom_id"] == "nowhere"
    assert NOWHERE in found[1].example["message"]


@TABLE.row("Results", "only the failed lines with chosen codes are retried, in a new batch; others are 409")
async def retried_codes(api: Api) -> None:
    await api.stack.faults(model=MODELS[1], kind=400, rate=1.0)
    batch = await done(api.client, jsonl([*chat_lines(MODELS[:2], each=2), chat_line("nowhere", NOWHERE)]))
    await api.stack.heal()
    path = f"/batches/{batch.id}/x/retry"
    with pytest.raises(BadRequestError) as unknown:
        await api.client.post(path, cast_to=Batch, body={"codes": []})
    assert unknown.value.param == "codes"
    retry = await api.client.post(path, cast_to=Batch, body={"codes": ["http_400"]})
    found = await lines(api, (await ended(api.client, retry.id)).output_file_id)
    assert [line.custom_id for line in found] == ["line-00001", "line-00003"]
    with pytest.raises(ConflictError, match=retry.id):
        await api.client.post(path, cast_to=Batch, body={"codes": ["model_not_found"]})


@TABLE.row(
    "Results", "HTTP errors of the backend are in the error file, with `response` set and `error` null"
)
async def http_errors(api: Api) -> None:
    await api.stack.faults(model=MODELS[1], kind=400, rate=1.0)
    batch = await done(api.client, jsonl(chat_lines(MODELS[:2], each=2)))
    assert batch.request_counts is not None
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 2, 2)
    for line in await lines(api, batch.error_file_id):
        assert line.error is None
        assert line.response is not None
        assert line.response.status_code == 400


@TABLE.row(
    "Results", "lines for a model that no backend serves fail; with only failed lines a batch is `completed`"
)
async def unserved(api: Api) -> None:
    batch = await done(api.client, jsonl([chat_line("a", "nobody-serves-this")]))
    assert (batch.status, batch.output_file_id) == ("completed", None)
    [line] = await lines(api, batch.error_file_id)
    assert line.response is None
    assert line.error is not None
    assert line.error.code == "model_not_found"


@TABLE.row(
    "Results", "a failed validation lists each invalid line with code, param and line; there are no files"
)
async def validation(api: Api) -> None:
    good = chat_line("a", MODELS[0])
    bad: list[tuple[str, tuple[str, str | None, int]]] = [
        ("{", ("invalid_json_line", None, 2)),
        ("[]", ("invalid_request", None, 3)),
        (_changed(good, custom_id=None), ("missing_required_parameter", "custom_id", 4)),
        (_changed(good, custom_id="a"), ("duplicate_custom_id", "custom_id", 5)),
        (_changed(good, custom_id="b", method="GET"), ("invalid_method", "method", 6)),
        (_changed(good, custom_id="c", url="/v1/embeddings"), ("invalid_url", "url", 7)),
        (_changed(good, custom_id="d", body={"messages": []}), ("invalid_request", "body.model", 8)),
        (_changed(good, custom_id="e", body={"model": "m"}), ("invalid_request", "body.messages", 9)),
        (_changed(good, custom_id=1), ("invalid_type", "custom_id", 10)),
        (_changed(good, custom_id="f", body=[]), ("invalid_type", "body", 11)),
        (
            _changed(good, custom_id="g", body={"model": "m", "messages": [], "stream": True}),
            ("streaming_unsupported", "body.stream", 12),
        ),
    ]
    content = "\n".join([json.dumps(good), *(line for line, _ in bad)]).encode()
    batch = await done(api.client, content)
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert batch.errors.object == "list"
    found = [(error.code, error.param, error.line) for error in batch.errors.data or []]
    assert found == [expected for _, expected in bad]


def _changed(line: dict[str, object], **changes: object) -> str:
    return json.dumps({key: value for key, value in {**line, **changes}.items() if value is not None})


@TABLE.row(
    "Results", "blank lines only: `empty_file`; an unknown input file: `invalid_request`, param `file_id`"
)
async def nothing(api: Api) -> None:
    empty = await done(api.client, b"\n \r\n")
    body = {"input_file_id": NOWHERE, "endpoint": CHAT, "completion_window": "24h"}
    lost = await ended(api.client, (await api.client.post("/batches", cast_to=Batch, body=body)).id)
    codes = [
        [(error.code, error.param, error.line) for error in (batch.errors and batch.errors.data) or []]
        for batch in (empty, lost)
    ]
    assert codes == [[("empty_file", None, None)], [("invalid_request", "file_id", None)]]


@TABLE.row("Results", "a byte order mark, CRLF, blank lines and a missing last newline are not errors")
async def harmless(api: Api) -> None:
    content = b"\xef\xbb\xbf\r\n" + CONTENT.replace(b"\n", b"\r\n\r\n").rstrip()
    batch = await done(api.client, content)
    assert batch.request_counts is not None
    assert (batch.status, batch.request_counts.completed) == ("completed", 3)


@TABLE.row("Results", "settled lines are read as they settle, while an earlier line is not settled")
async def as_they_settle(api: Api) -> None:
    async with api.stack.backend.hold(MODELS[1]):
        batch = await created(api.client, jsonl([chat_line("held", MODELS[1]), *LINES]))
        path = f"/batches/{batch.id}/x/results"

        async def are_read() -> bool:
            answer = await api.client.get(
                path, cast_to=httpx.Response, options={"params": {"order": "settled"}}
            )
            return answer.text.count("\n") == len(LINES)

        await until(are_read)
        in_order = await api.client.get(path, cast_to=httpx.Response)
        assert in_order.content == b""
    await ended(api.client, batch.id)


@TABLE.row("Results", "settled lines are read while the batch runs, and are the beginning of the output file")
async def live(api: Api) -> None:
    async with api.stack.backend.hold(MODELS[1]):
        batch = await created(api.client, jsonl([*LINES, chat_line("held", MODELS[1])]))
        path = f"/batches/{batch.id}/x/results"
        early = ""

        async def are_read() -> bool:
            nonlocal early
            early = (await api.client.get(path, cast_to=httpx.Response)).text
            return early.count("\n") == len(LINES)

        await until(are_read)
        assert (await api.client.batches.retrieve(batch.id)).status == "in_progress"
    batch = await ended(api.client, batch.id)
    assert batch.output_file_id is not None
    whole = (await api.client.files.content(batch.output_file_id)).text
    after = _Line.model_validate_json(early.splitlines()[-1]).id
    rest = await api.client.get(path, cast_to=httpx.Response, options={"params": {"after": after}})
    assert early + rest.text == whole
    for name in ("after", "status", "follow", "order"):
        with pytest.raises(BadRequestError) as refused:
            await api.client.get(path, cast_to=httpx.Response, options={"params": {name: "unknown"}})
        assert refused.value.param == name
