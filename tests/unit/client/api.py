"""A fake of the API for the Python client. A test changes the batch between the events of its stream."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx2
from openai import AsyncOpenAI, OpenAI

BATCH = "batch_1"
URL = "http://batchwright.test/v1"


def result_line(number: int, custom_id: str, status_code: int = 200) -> bytes:
    body = {"id": f"answer-{number}"} if status_code == 200 else {"error": {"message": "Too long."}}
    response = {"status_code": status_code, "request_id": "", "body": body}
    id = f"batch_req_{number:032x}"
    line = {"id": id, "custom_id": custom_id, "response": response, "error": None}
    return json.dumps(line, separators=(",", ":")).encode()


@dataclass
class Api:
    """One batch whose lines are settled from the first to the last.

    Attributes:
        outcomes: HTTP status of each line, by custom id, in input order.
        settled: number of settled lines.
        streams: content of each connection to the event stream; the last one is used for all further ones.
        breaks_after: number of lines after which responses with results break off; None for never.
    """

    outcomes: dict[str, int]
    settled: int = 0
    status: str = "in_progress"
    files_pending: bool = False
    errors: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    streams: list[bytes | Iterator[bytes]] = field(default_factory=list[bytes | Iterator[bytes]])
    breaks_after: int | None = None
    limits: httpx2.Response = field(
        default_factory=lambda: httpx2.Response(
            200, json={"max_lines": 50_000, "max_batch_file_bytes": 10**8}
        )
    )
    answers: list[httpx2.Response] = field(default_factory=list[httpx2.Response])
    requests: list[httpx2.Request] = field(default_factory=list[httpx2.Request])
    contents: list[bytes] = field(default_factory=list[bytes])

    def client(self) -> OpenAI:
        http = httpx2.Client(transport=httpx2.MockTransport(self.answer))
        return OpenAI(base_url=URL, api_key="unused", http_client=http, max_retries=1)

    def async_client(self) -> AsyncOpenAI:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer_async))
        return AsyncOpenAI(base_url=URL, api_key="unused", http_client=http, max_retries=1)

    def batch(self) -> dict[str, object]:
        settled = list(self.outcomes.values())[: self.settled]
        completed = settled.count(200)
        counts = {"total": len(self.outcomes), "completed": completed, "failed": len(settled) - completed}
        return {
            "id": BATCH,
            "status": self.status,
            "input_file_id": "file-input",
            "request_counts": counts,
            "errors": {"data": self.errors},
            "x_batchwright": {"files_pending": self.files_pending},
        }

    def event(self, settled: int, status: str = "in_progress") -> bytes:
        """Set the number of settled lines and the status of the batch. Return the event about this change."""
        self.settled, self.status = settled, status
        return f"event: batch.progress\ndata: {json.dumps(self.batch())}\nid: {settled:024x}\n\n".encode()

    def sent(self, path: str) -> list[httpx2.Request]:
        """Return the requests for this path."""
        return [request for request in self.requests if request.url.path == f"/v1{path}"]

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        return self._answer(request, request.read())

    async def answer_async(self, request: httpx2.Request) -> httpx2.Response:
        response = self._answer(request, await request.aread())
        return httpx2.Response(response.status_code, content=response.read())

    def _answer(self, request: httpx2.Request, content: bytes) -> httpx2.Response:
        if request.url.path == "/v1/x/limits":
            return self.limits
        self.requests.append(request)
        self.contents.append(content)
        if self.answers:
            return self.answers.pop(0)
        match request.method, request.url.path.removeprefix("/v1"):
            case "POST", "/files":
                return httpx2.Response(200, json={"id": "file-input"})
            case "POST", _:
                return httpx2.Response(200, json=self.batch())
            case _, "/files/file-input/content":
                lines = (json.dumps({"custom_id": id, "body": {}}) for id in self.outcomes)
                return httpx2.Response(200, content="\r\n\r\n".join(lines).encode())
            case _, path if path.endswith("/x/events"):
                stream = self.streams.pop(0) if len(self.streams) > 1 else self.streams[0]
                return httpx2.Response(200, content=stream)
            case _, path if path.endswith("/x/results"):
                return self._results(request.url.params)
            case _:
                return httpx2.Response(200, json=self.batch())

    def _results(self, query: httpx2.QueryParams) -> httpx2.Response:
        settled = list(self.outcomes.items())[: self.settled]
        lines = [
            result_line(number, id, code)
            for number, (id, code) in enumerate(settled)
            if (code == 200) == (query["status"] == "completed")
        ]
        if (after := query.get("after")) is not None:
            known = [line[7:49].decode() for line in lines]
            if after not in known:
                return httpx2.Response(400, json={"error": {"message": "Unknown line.", "param": "after"}})
            lines = lines[known.index(after) + 1 :]
        return httpx2.Response(200, content=self._pieces(lines))

    def _pieces(self, lines: list[bytes]) -> Iterator[bytes]:
        for number, line in enumerate(lines):
            if number == self.breaks_after:
                yield line[:60]
                raise httpx2.ReadError("the connection broke")
            yield line[:70]
            yield line[70:] + b"\n"
