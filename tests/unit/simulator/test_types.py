"""Each response of the simulator matches the types of the newest official client and OpenAI's description."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import httpx
import jsonschema
import pytest
from openai import BaseModel
from openai.types import (
    Completion,
    CreateEmbeddingResponse,
    ImagesResponse,
    Model,
    ModerationCreateResponse,
    Video,
)
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from openai.types.shared import ErrorObject

from batchwright.simulator.backend import SimulatorOptions
from batchwright.simulator.call_parser import ENDPOINTS
from tests.unit.simulator.simulators import CHAT, MODEL, Simulated, simulated

# The JSON document of https://github.com/openai/openai-openapi, which is too large to be kept here.
DESCRIPTION = os.environ.get("OPENAI_OPENAPI", "")
OTHERS = {"/v1/messages", "/v1/rerank", "/v1/score"}  # OpenAI does not have them
USER = [{"role": "user", "content": "hi"}]
JSON_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Call(NamedTuple):
    path: str
    body: dict[str, Any]
    types: type[BaseModel]
    description: str


CALLS = {
    "chat": Call(CHAT, {"messages": USER}, ChatCompletion, "CreateChatCompletionResponse"),
    "chat, several choices that are cut": Call(
        CHAT, {"messages": USER, "n": 3, "max_tokens": 2}, ChatCompletion, "CreateChatCompletionResponse"
    ),
    "chat, a JSON object": Call(
        CHAT,
        {"messages": USER, "response_format": {"type": "json_object"}},
        ChatCompletion,
        "CreateChatCompletionResponse",
    ),
    "completions": Call("/v1/completions", {"prompt": "a"}, Completion, "CreateCompletionResponse"),
    "responses": Call("/v1/responses", {"input": "a"}, Response, "Response"),
    "responses, a JSON schema": Call(
        "/v1/responses",
        {"input": "a", "text": {"format": {"type": "json_schema", "name": "n", "schema": JSON_SCHEMA}}},
        Response,
        "Response",
    ),
    "embeddings": Call(
        "/v1/embeddings", {"input": ["a", "b"]}, CreateEmbeddingResponse, "CreateEmbeddingResponse"
    ),
    "moderations": Call(
        "/v1/moderations",
        {"input": ["a", "violence"]},
        ModerationCreateResponse,
        "CreateModerationResponse",
    ),
    "images": Call("/v1/images/generations", {"prompt": "a"}, ImagesResponse, "ImagesResponse"),
    "edited images": Call("/v1/images/edits", {"prompt": "a", "n": 2}, ImagesResponse, "ImagesResponse"),
    "videos": Call("/v1/videos", {"prompt": "a cat"}, Video, "VideoResource"),
    "videos, with a size": Call(
        "/v1/videos", {"prompt": "a cat", "size": "1280x720", "seconds": "8"}, Video, "VideoResource"
    ),
}


@pytest.fixture
async def sim() -> AsyncGenerator[Simulated]:
    async with simulated() as running:
        yield running


def extras(value: object) -> list[str]:
    """Return the fields that the client's types do not know, in a value and in all values inside it."""
    if isinstance(value, list):
        return [name for item in cast(list[object], value) for name in extras(item)]
    if not isinstance(value, BaseModel):
        return []
    inner = [name for field in type(value).model_fields for name in extras(getattr(value, field))]
    return [*(value.model_extra or {}), *inner]


def check(types: type[BaseModel], description: str, body: bytes) -> None:
    read = types.model_validate_json(body, strict=True)
    assert extras(read) == []
    if DESCRIPTION:
        check_description(json.loads(body), description)


@cache
def components() -> dict[str, Any]:
    return json.loads(Path(DESCRIPTION).read_bytes())["components"]


def check_description(value: object, name: str) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": components()}
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator)


def check_error(answer: httpx.Response) -> None:
    error = answer.json()
    assert set(error) == {"error"}
    check_error_object(error["error"])
    if DESCRIPTION:
        check_description(error, "ErrorResponse")


def check_error_object(error: dict[str, object]) -> None:
    assert set(error) == {"message", "type", "param", "code"}
    ErrorObject.model_validate(error, strict=True)


def test_every_endpoint_that_openai_has_is_compared() -> None:
    assert {call.path for call in CALLS.values()} == set(ENDPOINTS) - OTHERS


@pytest.mark.parametrize("what", CALLS)
async def test_an_answer_has_the_shape_that_the_official_client_expects(sim: Simulated, what: str) -> None:
    call = CALLS[what]
    answer = await sim.http.post(call.path, json={"model": MODEL, **call.body})
    assert answer.status_code == 200
    check(call.types, call.description, answer.content)


@pytest.mark.parametrize("what", CALLS)
async def test_the_result_of_a_job_has_the_shape_that_the_official_client_expects(
    sim: Simulated, what: str
) -> None:
    call = CALLS[what]
    submitted = await sim.http.post(f"/jobs{call.path}", json={"model": MODEL, **call.body})
    status = (await sim.http.get(f"/jobs/status/{submitted.json()['job_id']}")).json()
    assert status["status"] == "completed"
    check(call.types, call.description, json.dumps(status["result"]).encode())


async def test_models_have_the_shape_that_the_official_client_expects(sim: Simulated) -> None:
    listed = (await sim.http.get("/v1/models")).json()
    assert listed.keys() == {"object", "data"}
    assert listed["object"] == "list"
    for model in listed["data"]:
        check(Model, "Model", json.dumps(model).encode())
    check(Model, "Model", (await sim.http.get(f"/v1/models/{MODEL}")).content)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
@pytest.mark.parametrize("prefix", ["", "/jobs"])
async def test_an_error_has_the_shape_that_the_official_client_expects(
    sim: Simulated, status: int, prefix: str
) -> None:
    answer = await sim.http.post(
        prefix + CHAT, json={"model": MODEL, "messages": USER, "user": f"sim:{status}"}
    )
    assert answer.status_code == status
    check_error(answer)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/nothing"),
        ("POST", "/v1/nothing"),
        ("GET", "/v1/models/none"),
        ("POST", CHAT),
        ("POST", f"/jobs{CHAT}"),
        ("GET", "/jobs/status/none"),
        ("POST", "/jobs/cancel/none"),
        ("GET", "/admin/none"),
    ],
)
async def test_a_refusal_has_the_shape_that_the_official_client_expects(
    sim: Simulated, method: str, path: str
) -> None:
    answer = await sim.http.request(method, path)
    assert answer.status_code in (400, 404)
    check_error(answer)


async def test_the_error_for_a_refused_key_has_the_shape_that_the_official_client_expects() -> None:
    async with simulated(SimulatorOptions(models=(MODEL,), api_key="secret")) as sim:
        for answer in (await sim.chat(), await sim.http.get("/v1/models")):
            assert answer.status_code == 401
            check_error(answer)


async def test_a_failed_job_has_an_error_like_any_other(sim: Simulated) -> None:
    submitted = await sim.http.post(
        f"/jobs{CHAT}", json={"model": MODEL, "messages": USER, "user": "sim:fail"}
    )
    status = (await sim.http.get(f"/jobs/status/{submitted.json()['job_id']}")).json()
    assert status["status"] == "failed"
    check_error_object(status["error"])


async def test_input_that_is_not_http_is_refused_with_an_error_of_the_same_shape(sim: Simulated) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sim.url.rsplit(":", 1)[1]))
    writer.write(b"HELLO\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 400")
    check_error(httpx.Response(400, content=body))


async def test_a_message_and_its_errors_have_the_shapes_of_anthropics_client(
    sim: Simulated,
) -> None:
    from anthropic.types import ErrorResponse, Message  # a second of imports, only for this test

    body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
    answer = await sim.http.post("/v1/messages", json=body)
    message = Message.model_validate_json(answer.content, strict=True)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 4)
    required = {name for name, field in Message.model_fields.items() if field.is_required()}
    assert required <= answer.json().keys() <= Message.model_fields.keys()
    for change, kind in (
        ({"max_tokens": None}, "invalid_request_error"),
        ({"model": "x"}, "not_found_error"),
    ):
        refused = await sim.http.post("/v1/messages", json={**body, **change})
        error = ErrorResponse.model_validate_json(refused.content, strict=True)
        assert (error.type, error.error.type) == ("error", kind)
