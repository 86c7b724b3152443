"""Backends on real sockets that each respond badly in one way. The reference uses the same names for them."""

import asyncio
import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from tests.clocks import skip_time
from tests.fakes.raw_servers import HEAD, Serve, answering, endless, read_request

LIMIT = 64 * 1024  # the tests' BATCHWRIGHT_MAX_RESPONSE_BYTES
CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
HUGE = 100_000_000
SKIPPED = 120.0
_PIECE = b"1" * 65_536
INPUTS = 3  # of an embeddings request
GOOD = b'{"id":"1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'


@dataclass(frozen=True)
class Bad:
    """A backend that gives a bad response to a request.

    Args:
        serve: handles a connection to the backend.
        out_of_time: like `serve`, but moves the event loop's clock forward by `SKIPPED` seconds when it sends
            nothing more. The client must be in the same loop. None if the response ends by itself.
    """

    serve: Serve
    endpoint: str = CHAT
    out_of_time: Serve | None = None


def response(body: bytes, *head: bytes, status: bytes = b"200 OK") -> Serve:
    """Return a handler that sends a complete response with this body, and then closes the connection.

    Args:
        head: Further header lines.
    """
    lines = [b"HTTP/1.1 " + status, *head, b"connection: close", b"content-length: %d" % len(body)]
    return answering(b"\r\n".join(lines) + b"\r\n\r\n" + body)


def embedded(*indexes: int) -> Bad:
    items = [{"object": "embedding", "index": index, "embedding": [0.5]} for index in indexes]
    return Bad(response(json.dumps({"object": "list", "data": items}).encode()), EMBEDDINGS)


def huge() -> Serve:
    """Return a handler that sends 100 MB in chunks, without announcing the size."""

    def pieces() -> Iterator[bytes]:
        for _ in range(HUGE // len(_PIECE)):
            yield b"%x\r\n%b\r\n" % (len(_PIECE), _PIECE)
        yield b"0\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        for piece in pieces():
            if writer.transport.is_closing():
                return
            writer.write(piece)
            await writer.drain()

    return serve


def silent(*pieces: bytes, then: Callable[[], None] | None = None) -> Serve:
    """Return a handler that sends `pieces`, then nothing more, and keeps the connection open.

    Args:
        then: called when the pieces are sent.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answering(*pieces)(reader, writer)
        if then is not None:
            then()
        with suppress(ConnectionError):
            await reader.read()

    return serve


def too_slow(*pieces: bytes) -> Bad:
    return Bad(silent(*pieces), out_of_time=silent(*pieces, then=lambda: skip_time(SKIPPED)))


_PACKED = gzip.compress(b'{"text":"%b"}' % (b"1" * 4 * LIMIT))
_PACKED_TWICE = gzip.compress(gzip.compress(b'{"text":"%b"}' % (b"1" * 20_000_000)))

ANSWERS: dict[str, Bad] = {
    "200 with HTML, with any content type": Bad(
        response(b"<html>no</html>", b"content-type: application/json")
    ),
    "200 with an empty body": Bad(response(b"")),
    "200 with truncated JSON": Bad(response(b'{"choices":[{"mess')),
    "200 with an event stream": Bad(response(b'data: {"choices":[]}\n\ndata: [DONE]\n\n')),
    "200 with text that is not UTF-8": Bad(response('{"text":"é"}'.encode("latin-1"))),
    "200 with a content encoding that the body does not have": Bad(
        response(b'{"a":1}', b"content-encoding: gzip")
    ),
    "200 with JSON that is not an object": Bad(response(b'["text"]')),
    "200 with an error in its body": Bad(response(b'{"error":{"message":"no","code":null}}')),
    "200 with an error in its body that has status 429": Bad(
        response(b'{"error":{"message":"slow","code":429}}')
    ),
    "200 with an error in its body that has status 400": Bad(
        response(b'{"error":{"message":"no","code":"400"}}')
    ),
    "200 with a JSON object and another content type": Bad(response(GOOD, b"content-type: text/html")),
    "200 without usage: no tokens are counted": Bad(response(b'{"choices":[]}')),
    "200 with invalid usage, such as a negative number: no tokens are counted": Bad(
        response(GOOD.replace(b'"prompt_tokens":3', b'"prompt_tokens":-3000'))
    ),
    "200 with a body above the limit, announced": Bad(silent(HEAD + b"content-length: %d\r\n\r\n" % HUGE)),
    "200 with a body of 100 MB, not announced": Bad(huge()),
    "200 with a compressed body that decompresses to more than the limit": Bad(
        response(_PACKED, b"content-encoding: gzip")
    ),
    "200 with a body compressed twice that decompresses to more than the limit": Bad(
        response(_PACKED_TWICE, b"content-encoding: gzip, gzip")
    ),
    "204": Bad(answering(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")),
    "500 of a gateway that cannot reach its upstream": Bad(
        response(
            b'{"error":{"message":"litellm.InternalServerError: InternalServerError: OpenAIException - '
            b'Connection error.","type":"internal_server_error","param":null,"code":"500"}}',
            status=b"500 Internal Server Error",
        )
    ),
    "embeddings: another number than inputs": embedded(0, 1),
    "embeddings: the same index twice": embedded(0, 1, 1),
    "embeddings: not a list": Bad(response(b'{"embedding":[0.5]}'), EMBEDDINGS),
    "embeddings: in another order, with their indexes": embedded(2, 0, 1),
    "a redirect, to the same or another host: it is not followed": Bad(
        response(b"", b"location: https://elsewhere.example/v1?key=sk-1", status=b"307 Moved")
    ),
    "endless interim responses (1xx)": Bad(endless(b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 100)),
    "a switch to another protocol (101)": Bad(
        answering(b"HTTP/1.1 101 Switch\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
    ),
    "endless headers": Bad(endless(HEAD, b"x-more: " + b"x" * 1000 + b"\r\n")),
    "an endless trailer": Bad(
        endless(
            HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"x-more: " + b"x" * 1000 + b"\r\n"
        )
    ),
    "something that is not HTTP": Bad(answering(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")),
    "a status below 100": Bad(response(GOOD, status=b"000 Nothing")),
    "the connection ends within the response": Bad(
        answering(HEAD + b"content-length: 100\r\n\r\n", b'{"a":')
    ),
    "the connection ends without a response": Bad(answering()),
    "no response in time": too_slow(),
    "the response stops before its end": too_slow(HEAD + b"content-length: 9\r\n\r\n{"),
}


def request_body(endpoint: str, content: str = "0") -> bytes:
    """Return a request body for `endpoint`, to which the responses in this module fit."""
    if endpoint == EMBEDDINGS:
        return json.dumps({"model": "m", "input": [content, "b", "c"]}).encode()
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
