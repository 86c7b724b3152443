"""Functions that create batches for tests of the web pages, and a text with markup that pages must escape."""

import json
import time
from collections.abc import Mapping, Sequence

import httpx

from tests.e2e.batches import CHAT

ENDED = ("completed", "failed", "expired", "cancelled")
HOSTILE = "</pre><script>document.title='broken'</script>\"'\u202eright to left" + "very-long-" * 30


class Client:
    """A client of the API that creates batches, and waits until they have a given status."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def create(
        self, lines: Sequence[Mapping[str, object]], *, name: str = "input.jsonl", **fields: object
    ) -> str:
        content = "".join(json.dumps(line) + "\n" for line in lines)
        files = {"file": (name, content.encode())}
        uploaded = self._http.post("/v1/files", files=files, data={"purpose": "batch"}).raise_for_status()
        body = {"input_file_id": uploaded.json()["id"], "endpoint": CHAT, **fields}
        return self._http.post("/v1/batches", json=body).raise_for_status().json()["id"]

    def wait(self, batch_id: str, *statuses: str, seconds: float = 300) -> None:
        until = time.monotonic() + seconds
        while self._http.get(f"/v1/batches/{batch_id}").json()["status"] not in statuses:
            assert time.monotonic() < until, f"{batch_id} is not {statuses}"
            time.sleep(0.1)


def line(custom_id: str, model: str, prompt: str, **more: object) -> dict[str, object]:
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], **more}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}
