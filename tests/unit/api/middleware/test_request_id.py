"""Properties of every response: error format, request id, tenant, readiness, metrics."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio.to_thread
import openai
import pytest

from batchwright.api.routes.health import ReadinessObject
from batchwright.contracts.api_objects.openai import ModelPage
from batchwright.database.errors import DatabaseUnavailable
from batchwright.storage.base import StorageUnavailable
from batchwright.temporal import TemporalUnavailable
from tests.fakes.api import ApiFixture, error_of, open_api, read


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/x"), ("POST", "/"), ("GET", "/v1/files/"), ("GET", "/v1"), ("DELETE", "/v1/batches/a/b/c")],
)
async def test_an_unknown_route_is_named(api: ApiFixture, method: str, path: str) -> None:
    answer = await api.http.request(method, path)
    assert answer.status_code == 404
    assert error_of(answer).message == f"Invalid URL ({method} {path})"
    assert error_of(answer).type == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/files", "GET, HEAD, POST"),
        ("POST", "/v1/files/x", "DELETE, GET, HEAD"),
        ("POST", "/v1/batches/x", "DELETE, GET, HEAD"),
        ("GET", "/v1/batches/x/cancel", "POST"),
        ("GET", "/v1/uploads", "POST"),
        ("OPTIONS", "/admin/dlq/retry-all", "POST"),  # not a dead letter of that name
    ],
)
async def test_a_known_route_with_another_method_names_the_allowed_ones(
    api: ApiFixture, method: str, path: str, allowed: str
) -> None:
    answer = await api.http.request(method, path)
    assert (answer.status_code, error_of(answer).type) == (405, "invalid_request_error")
    assert answer.headers["allow"] == allowed


async def test_every_answer_has_a_request_id_of_its_own(api: ApiFixture) -> None:
    answers = [await api.http.get(path) for path in ("/healthz", "/v1/x", "/v1/files", "/v1/files/x")]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 4
    assert all(one.startswith("req_") for one in ids)


async def test_a_sane_request_id_is_echoed_and_another_replaced(api: ApiFixture) -> None:
    sane = await api.http.get("/v1/x", headers={"x-request-id": "trace-1/a:b"})
    assert sane.headers["x-request-id"] == "trace-1/a:b"
    for other in ("x" * 129, "a b", "a\tb", ""):
        answer = await api.http.get("/v1/x", headers={"x-request-id": other})
        assert answer.headers["x-request-id"].startswith("req_")


async def test_an_unexpected_error_shows_the_client_no_details(
    api: ApiFixture, caplog: pytest.LogCaptureFixture
) -> None:
    api.database.rows.failing = ZeroDivisionError("secret detail")
    answer = await api.http.get("/v1/files", headers={"x-request-id": "trace-1"})
    assert (answer.status_code, error_of(answer).type) == (500, "server_error")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert answer.headers["x-request-id"] == "trace-1"
    assert "secret detail" in caplog.text


async def test_an_unavailable_database_requests_a_retry(api: ApiFixture) -> None:
    api.database.rows.failing = DatabaseUnavailable("secret detail")
    for path in ("/v1/files", "/v1/batches", "/v1/batches/batch_" + "0" * 32):
        answer = await api.http.get(path)
        assert (answer.status_code, error_of(answer).type) == (503, "server_error")
        assert int(answer.headers["retry-after"]) > 0
        assert "secret" not in answer.text


@pytest.mark.parametrize("tenant", ["", " ", "a/b", "-a", "x" * 65, "a b"])
async def test_an_invalid_tenant_name_is_refused(api: ApiFixture, tenant: str) -> None:
    answers = [
        await api.http.get("/v1/files", headers={"X-Tenant": tenant}),
        await api.http.get("/v1/batches/x", headers={"X-Tenant": tenant}),
        await api.http.post("/v1/batches", json={}, headers={"X-Tenant": tenant}),
    ]
    assert [answer.status_code for answer in answers] == [400] * 3
    assert {error_of(answer).param for answer in answers} == {"X-Tenant"}


async def test_without_a_tenant_header_the_default_tenant_is_used() -> None:
    async with open_api(default_tenant="blue") as api:
        await api.create(tenant="blue")
        assert len([batch async for batch in api.openai.batches.list()]) == 1


async def test_models_are_those_that_backends_serve(api: ApiFixture) -> None:
    page = read(await api.http.get("/v1/models"), ModelPage)
    assert [model.id for model in page.data] == ["llama", "org/qwen:7b"]
    assert (await api.openai.models.retrieve("org/qwen:7b")).owned_by == "batchwright"


async def test_an_unserved_model_is_not_found(api: ApiFixture) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await api.openai.models.retrieve("org/other")
    assert missing.value.code == "model_not_found"


async def test_readiness_names_each_unavailable_dependency(api: ApiFixture) -> None:
    ready = await api.http.get("/readyz")
    api.storage.failing = StorageUnavailable("down")
    api.temporal.failing = TemporalUnavailable("down")
    unready = await api.http.get("/readyz")
    api.database.rows.failing = DatabaseUnavailable("down")
    nothing = await api.http.get("/readyz")
    assert (ready.status_code, ReadinessObject.model_validate_json(ready.content).status) == (200, "ok")
    assert unready.status_code == nothing.status_code == 503
    assert int(unready.headers["retry-after"]) > 0
    assert unready.json()["checks"] == {
        "background_tasks": "ok",
        "postgresql": "ok",
        "temporal": "unavailable",
        "storage": "unavailable",
    }
    assert nothing.json()["checks"]["postgresql"] == "unavailable"
    assert (await api.http.get("/healthz")).status_code == 200


async def test_a_background_task_that_fails_makes_the_api_unready(api: ApiFixture) -> None:
    async def broken() -> None:
        raise ValueError("year 20262026202620262026 is out of range")

    api.background.start("registry", broken)
    while (answer := await api.http.get("/readyz")).status_code == 200:
        await asyncio.sleep(0)
    await api.background.stop()
    assert (answer.status_code, answer.json()["checks"]["background_tasks"]) == (503, "unavailable")
    assert answer.json()["checks"]["postgresql"] == "ok"


async def counted(api: ApiFixture) -> Counter[str]:
    """Return how many requests the metrics count, by the text of their labels."""
    text = (await api.http.get("/metrics")).text
    found = re.findall(r"^batchwright_api_requests_total\{(.*)\} (.*)$", text, flags=re.MULTILINE)
    return Counter({labels: int(float(count)) for labels, count in found})


async def test_metrics_have_the_content_type_of_prometheus(api: ApiFixture) -> None:
    answer = await api.http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_answers_are_counted_by_route_and_never_by_id(api: ApiFixture) -> None:
    before = await counted(api)
    await api.http.get("/v1/files/file-1")
    await api.http.get("/v1/files/file-2")
    await api.http.request("BREW", "/v1/coffee")
    assert await counted(api) - before == {
        'method="GET",route="/v1/files/{file_id}",status="404"': 2,
        'method="other",route="unknown",status="404"': 1,
        'method="GET",route="/metrics",status="200"': 1,
    }


async def test_every_route_is_documented_and_no_other(api: ApiFixture) -> None:
    description = (await api.http.get("/openapi.json")).json()
    served = {f"{method.upper()} {path}" for path, item in description["paths"].items() for method in item}
    page = (Path(__file__).parents[4] / "docs/reference/api.md").read_text()
    assert set(re.findall(r"^### ([A-Z]+ /\S+)$", page, re.MULTILINE)) == served


async def test_the_description_has_no_answer_that_is_never_given(api: ApiFixture) -> None:
    description = (await api.http.get("/openapi.json")).json()
    answers = {
        status
        for item in description["paths"].values()
        for way in item.values()
        for status in way["responses"]
    }
    assert answers == {
        str(status)
        for status in (
            200,
            204,
            206,
            304,
            400,
            401,
            403,
            404,
            408,
            409,
            410,
            412,
            413,
            416,
            429,
            431,
            500,
            503,
        )
    }
    assert "HTTPValidationError" not in description["components"]["schemas"]


async def test_every_reference_in_the_description_resolves(api: ApiFixture) -> None:
    text = (await api.http.get("/openapi.json")).text
    schemas = (await api.http.get("/openapi.json")).json()["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) <= set(schemas)
    assert "$defs" not in text


async def test_the_description_shows_bodies_and_can_be_browsed(api: ApiFixture) -> None:
    paths = (await api.http.get("/openapi.json")).json()["paths"]
    assert "input_file_id" in str(paths["/v1/batches"]["post"]["requestBody"])
    assert "multipart/form-data" in paths["/v1/files"]["post"]["requestBody"]["content"]


async def test_no_request_waits_for_a_thread(api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI runs synchronous functions in threads. Under load, a thread costs more than the rest of a
    request.
    """

    async def run_sync(*_: object, **__: object) -> None:
        raise AssertionError("a thread was requested")

    monkeypatch.setattr(anyio.to_thread, "run_sync", run_sync)
    batch = await api.create()
    paths = [f"batches/{batch.id}", "batches", "files", "models", f"files/{batch.input_file_id}/content"]
    answers = [await api.http.get(f"/v1/{path}") for path in paths]
    assert [answer.status_code for answer in answers] == [200] * len(paths)


async def test_the_time_of_a_create_call_is_measured(api: ApiFixture) -> None:
    labels = {"method": "POST", "route": "/v1/batches"}
    value, name = api.metrics.registry.get_sample_value, "batchwright_api_request_duration_seconds"
    before = value(f"{name}_count", labels) or 0
    await api.http.post("/v1/batches", json={})
    assert value(f"{name}_count", labels) == before + 1
    assert (value(f"{name}_sum", labels) or 0) > 0
