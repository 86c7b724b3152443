"""Hints in 404 errors for unknown paths."""

import openai
import pytest

from tests.fakes.api import error_of, open_api

SERVER = "submit it as a job (POST /queue/submit)"
TWICE = "has /v1 twice"
LACKS = "lacks /v1"
AZURE = "Azure OpenAI"


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("POST", "/v1/completions", SERVER),
        ("POST", "/v1/embeddings", SERVER),
        ("POST", "/v1/rerank", SERVER),
        ("GET", "/v1/embeddings", SERVER),
        ("POST", "/v1/v1/batches", TWICE),
        ("GET", "/v1/v1/files/file-1/content", TWICE),
        ("POST", "/v1/v1/chat/completions", TWICE),
        ("POST", "/files", LACKS),
        ("GET", "/batches/batch_1", LACKS),
        ("GET", "/models", LACKS),
        ("POST", "/chat/completions", LACKS),
        ("POST", "/openai/batches", AZURE),
        ("POST", "/openai/deployments/x/chat/completions", AZURE),
    ],
)
async def test_a_known_wrong_path_gets_a_hint(method: str, path: str, hint: str) -> None:
    async with open_api() as api:
        answer = await api.http.request(method, path)
    assert answer.status_code == 404
    assert error_of(answer).message.startswith(f"Invalid URL ({method} {path}). ")
    assert hint in error_of(answer).message


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/v1/v1", "/v1/v1/nothing", "/nothing", "/v1/threads"])
async def test_other_unknown_paths_get_no_hint(path: str) -> None:
    async with open_api() as api:
        answer = await api.http.get(path)
    assert (answer.status_code, error_of(answer).message) == (404, f"Invalid URL (GET {path})")


async def test_the_official_client_raises_what_this_server_is() -> None:
    async with open_api() as api:
        with pytest.raises(openai.NotFoundError, match="runs batches"):
            await api.openai.embeddings.create(model="m", input="x")
        with pytest.raises(openai.BadRequestError, match="that may wait"):
            await api.openai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])


async def test_an_idempotency_key_in_a_body_is_refused_with_the_header_to_use() -> None:
    fields = {"input_file_id": "file-x", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    async with open_api() as api:
        answers = [
            await api.post({**fields, "idempotency_key": "k"}),
            await api.http.post("/v1/uploads", json={"idempotency_key": "k"}),
            await api.http.post("/v1/files", data={"idempotency_key": "k"}, files={"file": ("a", b"{}")}),
        ]
        other = await api.http.post("/v1/batches/batch_x/x/retry", json={"idempotency_key": "k"})
    for answer in answers:
        error = error_of(answer)
        assert (answer.status_code, error.code, error.param) == (400, "unknown_parameter", "idempotency_key")
        assert error.message == (
            "Unknown parameter: 'idempotency_key'. Send the key in the header Idempotency-Key."
        )
    assert other.status_code == 404


@pytest.mark.parametrize("endpoint", ["/v1/score", "/v1/rerank"])
async def test_endpoints_of_inference_engines_are_for_the_relaxed_profile(endpoint: str) -> None:
    fields = {"input_file_id": "file-x", "endpoint": endpoint, "completion_window": "24h"}
    async with open_api() as api:
        relaxed = await api.post(fields)
    async with open_api(profile="strict") as api:
        strict = await api.post(fields)
        described = (await api.http.get("/openapi.json")).text
    assert relaxed.status_code == 200
    assert (strict.status_code, error_of(strict).param) == (400, "endpoint")
    assert endpoint not in error_of(strict).message.partition("Supported")[2]
    body = described.partition('"input_file_id"')[2]
    assert endpoint not in body.partition('"completion_window"')[0]
