"""HTTP proxy in front of an S3 server. It records all requests, and fails those that a test chooses."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO

from aiohttp import ClientSession, web
from multidict import CIMultiDict
from yarl import URL

_NOT_PASSED_ON = {"connection", "expect", "keep-alive", "transfer-encoding", "content-length"}
_ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>Told to.</Message></Error>'


@dataclass(frozen=True)
class Seen:
    """A request that passed the proxy. `what` is its method and kind, such as `POST uploads`."""

    what: str
    key: str
    headers: CIMultiDict[str]


@dataclass
class Fault:
    """A fault for the next `times` requests of the kind `what`, such as `POST uploads`."""

    what: str
    times: int
    answer: tuple[int, str] | None = None  # status and code, without asking the server
    cut_after: int | None = None  # bytes of the server's answer, then the connection breaks
    lose_answer: bool = False  # the server does it, but nobody hears


@dataclass
class S3Proxy:
    target: str
    http: ClientSession
    url: str = ""
    seen: list[Seen] = field(default_factory=list[Seen])
    faults: list[Fault] = field(default_factory=list[Fault])
    on_request: Callable[[Seen], None] = lambda seen: None
    refuses: tuple[int, str] | None = None  # status and code of every answer, while it is set

    def fail(self, what: str, status: int, code: str, times: int = 1) -> None:
        self.faults.append(Fault(what, times, answer=(status, code)))

    def cut(self, what: str, after: int, times: int = 1) -> None:
        self.faults.append(Fault(what, times, cut_after=after))

    def lose_answer(self, what: str) -> None:
        self.faults.append(Fault(what, 1, lose_answer=True))

    def requests(self, what: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.what == what]

    def _fault(self, seen: Seen) -> Fault | None:
        for fault in self.faults:
            if fault.what == seen.what and fault.times:
                fault.times -= 1
                return fault
        return None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        seen = Seen(_what(request), request.path, CIMultiDict(request.headers))
        body = await request.read()
        self.seen.append(seen)
        self.on_request(seen)
        fault = self._fault(seen)
        refusal = self.refuses or (fault.answer if fault else None)
        if refusal:
            status, code = refusal
            text = "" if request.method == "HEAD" else _ERROR.format(code=code)
            return web.Response(status=status, text=text, content_type="application/xml")
        headers = {name: value for name, value in request.headers.items() if _passes(name)}
        url = URL(self.target + request.raw_path, encoded=True)
        async with self.http.request(
            request.method, url, data=BytesIO(body), headers=headers, skip_auto_headers=("Content-Type",)
        ) as answer:
            content = await answer.read()
            passed = CIMultiDict((n, v) for n, v in answer.headers.items() if _passes(n))
        if fault and fault.lose_answer:
            _break_off(request)
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=passed)
        response.content_length = (
            int(answer.headers.get("Content-Length", 0)) if request.method == "HEAD" else len(content)
        )
        await response.prepare(request)
        if fault and fault.cut_after is not None:
            await response.write(content[: fault.cut_after])
            _break_off(request)
        elif request.method != "HEAD":
            await response.write(content)
        return response


def _what(request: web.Request) -> str:
    operations = sorted(set(request.query) & {"uploads", "uploadId", "list-type"})
    return " ".join([request.method, *operations])


def _passes(header: str) -> bool:
    return header.lower() not in _NOT_PASSED_ON


def _break_off(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.close()  # what was written still goes out


@asynccontextmanager
async def proxied(target: str) -> AsyncGenerator[S3Proxy, None]:
    """Context manager that runs a proxy for the S3 server `target` on a free port, and yields the proxy."""
    app = web.Application(client_max_size=1 << 30)
    async with ClientSession(auto_decompress=False) as http:
        proxy = S3Proxy(target, http)
        app.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        proxy.url = f"http://{host}:{port}"
        try:
            yield proxy
        finally:
            await runner.cleanup()
