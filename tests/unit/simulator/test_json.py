"""Responses of the simulator to requests for JSON, and requests that OpenAI rejects."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import jsonschema
import pytest

from tests.unit.simulator.simulators import CHAT, MODEL, Simulated, simulated

USER = [{"role": "user", "content": "hi"}]
TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["name", "children"],
    "additionalProperties": False,
}
LIST = {
    "type": "object",
    "properties": {"head": {"$ref": "#/$defs/node"}},
    "required": ["head"],
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["next"],
        }
    },
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "anything": {},
    "a tree": TREE,
    "a linked list": LIST,
    "a choice": {"enum": ["yes", "no"]},
    "a constant": {"const": {"a": 1}},
    "types": {"type": ["number", "null"], "minimum": 3, "exclusiveMaximum": 4},
    "an integer of a step": {"type": "integer", "multipleOf": 7, "minimum": 8},
    "a number below zero": {"type": "number", "maximum": -0.25},
    "an integer above an excluded one": {"type": "integer", "exclusiveMinimum": 1},
    "a number in a narrow range": {"type": "number", "minimum": 0.1, "maximum": 0.2},
    "a short text": {"type": "string", "maxLength": 3},
    "a long text": {"type": "string", "minLength": 2000},
    "a date": {"type": "string", "format": "date-time"},
    "a list of some length": {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 4},
    "an empty list": {"type": "array", "maxItems": 0},
    "a pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "minItems": 2},
    "parts": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "a wide tree": {
        "type": "object",
        "properties": {f"p{number}": {"$ref": "#"} for number in range(20)},
    },
    "one of": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
}


@pytest.fixture
async def sim() -> AsyncGenerator[Simulated]:
    async with simulated() as running:
        yield running


async def chat(sim: Simulated, **body: Any) -> tuple[int, dict[str, Any]]:
    answer = await sim.http.post(CHAT, json={"model": MODEL, "messages": USER, **body})
    return answer.status_code, answer.json()


def wanted(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}


@pytest.mark.parametrize("what", SCHEMAS)
async def test_a_chat_conforms_to_the_schema_of_its_request(sim: Simulated, what: str) -> None:
    _, answer = await chat(sim, response_format=wanted(SCHEMAS[what]), max_tokens=5)
    (choice,) = answer["choices"]
    jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMAS[what])
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("what", SCHEMAS)
async def test_a_response_conforms_to_the_schema_of_its_request(sim: Simulated, what: str) -> None:
    text = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMAS[what]}}
    answer = await sim.http.post("/v1/responses", json={"model": MODEL, "input": "hi", "text": text})
    jsonschema.validate(json.loads(answer.json()["output"][0]["content"][0]["text"]), SCHEMAS[what])


async def test_a_chat_that_requests_json_is_answered_with_an_object(sim: Simulated) -> None:
    _, answer = await chat(sim, response_format={"type": "json_object"}, n=2)
    first, second = (json.loads(choice["message"]["content"]) for choice in answer["choices"])
    assert isinstance(first, dict)
    assert first != second


async def test_a_chat_that_requests_text_is_answered_with_text(sim: Simulated) -> None:
    _, plain = await chat(sim, response_format={"type": "text"})
    assert len(plain["choices"][0]["message"]["content"].split()) == 16


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"messages": [{"content": "hi"}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [*USER, {"role": "bot", "content": "a"}]}, "messages[1].role", "invalid_value"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": ["hi"]}, "messages", "invalid_type"),
        ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing_required_parameter",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
            "missing_required_parameter",
        ),
        ({"response_format": wanted({"$ref": "#/$defs/none"})}, "response_format", None),
        ({"response_format": wanted({"$ref": "#"})}, "response_format", None),
        ({"response_format": wanted({"allOf": [{"$ref": "#"}]})}, "response_format", None),
        ({"response_format": wanted({"anyOf": [{"$ref": "#"}]})}, "response_format", None),
        ({"response_format": wanted({"properties": 7})}, "response_format", None),
        ({"response_format": wanted({"type": "number", "minimum": "a"})}, "response_format", None),
        (
            {"response_format": wanted({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})},
            "response_format",
            None,
        ),
    ],
)
async def test_requests_that_openai_refuses_are_refused(
    sim: Simulated, body: dict[str, Any], param: str, code: str | None
) -> None:
    status, answer = await chat(sim, **body)
    error = answer["error"]
    assert (status, error["param"], error["code"], error["type"]) == (
        400,
        param,
        code,
        "invalid_request_error",
    )


async def test_a_response_with_an_incomplete_format_is_refused(sim: Simulated) -> None:
    schema: dict[str, Any] = {"type": "json_schema", "schema": {}}
    body = {"model": MODEL, "input": "hi", "text": {"format": schema}}
    answer = await sim.http.post("/v1/responses", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "text.format.name")


async def test_a_video_of_another_size_is_refused(sim: Simulated) -> None:
    answer = await sim.http.post("/v1/videos", json={"model": MODEL, "prompt": "a", "size": "1x1"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "size")
