"""Requests to /v1/responses, and answers of a backend to them."""

from datetime import UTC, datetime

from tests.fakes.api import ApiFixture

PATH = "/v1/responses"
NOW = datetime.now(UTC)
ASK: dict[str, object] = {"model": "llama", "input": "Say hello.", "background": True}
OUTPUT: list[object] = [
    {"type": "message", "content": [{"type": "output_text", "text": "Hello!", "annotations": []}]}
]
ANSWER: dict[str, object] = {
    "id": "resp_backend",
    "object": "response",
    "status": "completed",
    "output": OUTPUT,
    "model": "llama",
}


async def created(api: ApiFixture, **fields: object) -> str:
    response = await api.http.post(PATH, json={**ASK, **fields})
    assert response.status_code == 200, response.text
    return response.json()["id"]
