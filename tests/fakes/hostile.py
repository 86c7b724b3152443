"""Backends that answer badly, each in one way, on sockets: by the names that the reference gives them."""

import asyncio
import gzip
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from tests.unit.sockets import HEAD, Serve, answering, read_request

LIMIT = 64 * 1024  # the tests' BATCHWRIGHT_MAX_RESPONSE_BYTES
CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
HUGE = 100_000_000
_PIECE = b"1" * 65_536
INPUTS = 3  # of the embeddings that are asked for
GOOD = b'{"id":"1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'


@dataclass(frozen=True)
class Bad:
    """How one request is answered; `settings` make it quick."""

    serve: Serve
    endpoint: str = CHAT
    settings: dict[str, float] = field(default_factory=dict[str, float])


def said(body: bytes, *head: bytes, status: bytes = b"200 OK") -> Serve:
    """A whole answer with that body; its connection is not to be used again, for it is closed then."""
    lines = [b"HTTP/1.1 " + status, *head, b"connection: close", b"content-length: %d" % len(body)]
    return answering(b"\r\n".join(lines) + b"\r\n\r\n" + body)


def embedded(*indexes: int) -> Bad:
    items = [{"object": "embedding", "index": index, "embedding": [0.5]} for index in indexes]
    return Bad(said(json.dumps({"object": "list", "data": items}).encode()), EMBEDDINGS)


def endless(start: bytes, piece: bytes) -> Serve:
    """Begins an answer and goes on until nobody listens."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(start)
        while not writer.transport.is_closing():
            writer.write(piece)
            await writer.drain()

    return serve


def huge(size: int = HUGE) -> Serve:
    """So much, in chunks, without saying before how much."""

    def pieces() -> Iterator[bytes]:
        for _ in range(size // len(_PIECE)):
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


def silent(*pieces: bytes) -> Serve:
    """Says these, then nothing more, and keeps the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answering(*pieces)(reader, writer)
        with suppress(ConnectionError):
            await reader.read()

    return serve


_SHORT = {"request_timeout_seconds": 0.2}
_PACKED = gzip.compress(b'{"text":"%b"}' % (b"1" * 4 * LIMIT))
_PACKED_TWICE = gzip.compress(gzip.compress(b'{"text":"%b"}' % (b"1" * 20_000_000)))

ANSWERS: dict[str, Bad] = {
    "200 with HTML, whatever its content type": Bad(
        said(b"<html>no</html>", b"content-type: application/json")
    ),
    "200 with nothing": Bad(said(b"")),
    "200 with JSON that is cut off": Bad(said(b'{"choices":[{"mess')),
    "200 with an event stream": Bad(said(b'data: {"choices":[]}\n\ndata: [DONE]\n\n')),
    "200 with text that is not UTF-8": Bad(said('{"text":"é"}'.encode("latin-1"))),
    "200 with a content encoding that it does not have": Bad(said(b'{"a":1}', b"content-encoding: gzip")),
    "200 with JSON that is no object": Bad(said(b'["text"]')),
    "200 with an error in its body": Bad(said(b'{"error":{"message":"no","code":null}}')),
    "200 with an error in its body that names 429": Bad(said(b'{"error":{"message":"slow","code":429}}')),
    "200 with an error in its body that names 400": Bad(said(b'{"error":{"message":"no","code":"400"}}')),
    "200 with a JSON object and another content type": Bad(said(GOOD, b"content-type: text/html")),
    "200 without usage: no tokens are counted": Bad(said(b'{"choices":[]}')),
    "200 with a usage that is none, such as one below zero: no tokens are counted": Bad(
        said(GOOD.replace(b'"prompt_tokens":3', b'"prompt_tokens":-3000'))
    ),
    "200 with more than the limit, announced": Bad(silent(HEAD + b"content-length: %d\r\n\r\n" % HUGE)),
    "200 with 100 MB, not announced": Bad(huge()),
    "200 with a packed body that unpacks beyond the limit": Bad(said(_PACKED, b"content-encoding: gzip")),
    "200 with a body packed twice that unpacks beyond the limit": Bad(
        said(_PACKED_TWICE, b"content-encoding: gzip, gzip")
    ),
    "204": Bad(answering(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")),
    "500 of a gateway that says it cannot reach what is behind it": Bad(
        said(
            b'{"error":{"message":"litellm.InternalServerError: InternalServerError: OpenAIException - '
            b'Connection error.","type":"internal_server_error","param":null,"code":"500"}}',
            status=b"500 Internal Server Error",
        )
    ),
    "embeddings: not as many as inputs": embedded(0, 1),
    "embeddings: an index twice": embedded(0, 1, 1),
    "embeddings: no list of them": Bad(said(b'{"embedding":[0.5]}'), EMBEDDINGS),
    "embeddings: in another order, with their indexes": embedded(2, 0, 1),
    "a redirect, to its own or another host: none is followed": Bad(
        said(b"", b"location: https://elsewhere.example/v1?key=sk-1", status=b"307 Moved")
    ),
    "interim answers (1xx) without end": Bad(endless(b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 100)),
    "a switch to another protocol (101)": Bad(
        answering(b"HTTP/1.1 101 Switch\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
    ),
    "a head without end": Bad(endless(HEAD, b"x-more: " + b"x" * 1000 + b"\r\n")),
    "a trailer without end": Bad(
        endless(
            HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"x-more: " + b"x" * 1000 + b"\r\n"
        )
    ),
    "something that is not HTTP": Bad(answering(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")),
    "a status below 100": Bad(said(GOOD, status=b"000 Nothing")),
    "the connection ends in mid-answer": Bad(answering(HEAD + b"content-length: 100\r\n\r\n", b'{"a":')),
    "the connection ends without an answer": Bad(answering()),
    "no answer in time": Bad(silent(), settings=_SHORT),
    "silence in mid-answer": Bad(silent(HEAD + b"content-length: 9\r\n\r\n{"), settings=_SHORT),
}


def asked(endpoint: str, content: str = "0") -> bytes:
    """A request's body that the answers above would fit."""
    if endpoint == EMBEDDINGS:
        return json.dumps({"model": "m", "input": [content, "b", "c"]}).encode()
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
