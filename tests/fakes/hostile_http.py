"""Servers that each violate HTTP in one way, and the result that the HTTP transport must report."""

import asyncio
import gzip
import socket
import struct
from dataclasses import dataclass

from tests.fakes.raw_servers import Serve, endless, read_request
from tests.fakes.raw_servers import answering as says

LIMIT = 128 * 1024  # the largest answer that is accepted
LARGE = b"x" * 16 * 1024 * 1024  # a request that the buffers of no two sockets hold
PATIENCE = 1.0  # seconds, with the connection, of a request that a server leaves without an end

NEVER_SENT = "never sent"
NO_ANSWER = "sent, no answer"
CUT_OFF = "cut off in mid-answer"
NOT_HTTP = "not HTTP"
TOO_LATE = "no answer in time"
TOO_LARGE = "too large"
UNREADABLE = "cannot be unpacked"

STATUS = b"HTTP/1.1 200 OK\r\n"
GOOD = STATUS + b"content-length: 2\r\n\r\n{}"
CHUNKED = STATUS + b"transfer-encoding: chunked\r\n\r\n"
ANSWERED = "200 {}"


@dataclass(frozen=True)
class Case:
    """A server that violates HTTP, and the expected result of one request to this server.

    Attributes:
        what: name of the case.
        play: behaviour of the server on its first connection.
        result: expected result, such as `not HTTP`.
        httpx: expected result with the transport of httpx, if it differs.
        body: body of the request.
        closes: True to close the connection after `play`. If False, the server waits for another request on
            it.
        kept: True if the transport may send another request on the same connection.
        secure: True to use TLS.
    """

    what: str
    play: Serve
    result: str = NOT_HTTP
    httpx: str = ""
    body: bytes = b"{}"
    closes: bool = False
    kept: bool = False
    secure: bool = False


def trickles(piece: bytes) -> Serve:
    """Return a server that sends `piece` every `PATIENCE / 3` s until the client disconnects."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        while not writer.transport.is_closing():
            writer.write(piece)
            await asyncio.sleep(PATIENCE / 3)

    return play


def bytewise(data: bytes) -> Serve:
    return says(*[data[at : at + 1] for at in range(len(data))])


def resets(*pieces: bytes, reads: int | None = None) -> Serve:
    """Return a server that sends `pieces` and then resets the connection.

    Args:
        reads: number of bytes of the request to read first; None reads the whole request.
    """

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reads is None:
            await read_request(reader)
        elif reads:
            await reader.readexactly(reads)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        connected: socket.socket = writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    return play


def early(answer: bytes, *, holds: bool = True) -> Serve:
    """Return a server that answers when it has read the head of the request, without reading the body.

    Args:
        holds: True to keep the connection open afterwards.
    """

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        if holds:
            await asyncio.Event().wait()

    return play


def half_closes(*pieces: bytes, reads_body: bool = True) -> Serve:
    """Return a server that sends `pieces`, closes only its sending direction, and still accepts data.

    Args:
        reads_body: True to read the body of the request first.
    """

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reads_body:
            await read_request(reader)
        else:
            await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
        writer.write_eof()
        await asyncio.Event().wait()

    return play


def framed(*lines: bytes, body: bytes = b"{}", status: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([status, *lines]) + b"\r\n\r\n" + body


_TINY = b"2\r\nab\r\n"
_LENGTH = b"content-length: 2"
_BOMB = gzip.compress(b"1" * 100 * LIMIT)
_BOMBS = gzip.compress(_BOMB)


def _packed(body: bytes, encoding: bytes) -> bytes:
    return framed(b"content-encoding: " + encoding, b"content-length: %d" % len(body), body=body)


HEADS = [
    Case("single bytes", bytewise(GOOD), ANSWERED, kept=True),
    Case("the head does not end", says(STATUS), TOO_LATE),
    Case("the head trickles in and does not end", bytewise(STATUS + b"x-a: b"), TOO_LATE),
    Case("header lines without end", endless(STATUS, b"x-more: " + b"x" * 1000 + b"\r\n")),
    Case("one header value without end", endless(STATUS + b"x-more: ", b"x" * 1000)),
    Case("one header name without end", endless(STATUS, b"x" * 1000)),
    Case("a reason phrase without end", endless(b"HTTP/1.1 200 ", b"O" * 1000)),
    Case("empty lines without end before the status", endless(b"", b"\r\n" * 500)),
    Case("something that is not HTTP", says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), closes=True),
    Case("a status of two digits", says(framed(_LENGTH, status=b"HTTP/1.1 20 OK"))),
    Case("a status of four digits", says(framed(_LENGTH, status=b"HTTP/1.1 2000 OK"))),
    Case("a status that is no number", says(framed(_LENGTH, status=b"HTTP/1.1 abc OK"))),
    Case("no reason phrase", says(framed(_LENGTH, status=b"HTTP/1.1 200")), ANSWERED, kept=True),
    Case("HTTP/2.0 in the status line", says(framed(_LENGTH, status=b"HTTP/2.0 200 OK")), ANSWERED),
    Case("HTTP/9.9 in the status line", says(framed(_LENGTH, status=b"HTTP/9.9 200 OK")), httpx=ANSWERED),
    Case("ICY in place of HTTP", says(framed(_LENGTH, status=b"ICY 200 OK"))),
    Case("a NUL in a header value", says(framed(b"x-a: b\0c", _LENGTH))),
    Case("a NUL in a header name", says(framed(b"x\0a: b", _LENGTH))),
    Case("a CR in a header value", says(framed(b"x-a: b\rc", _LENGTH))),
    Case("a header without a colon", says(framed(b"x-a", _LENGTH))),
    Case("a header without a name", says(framed(b": b", _LENGTH))),
    Case("a space before the colon", says(framed(b"content-length : 2"))),
    Case("a header that is folded", says(framed(b"x-a: b\r\n c", _LENGTH)), httpx=ANSWERED),
    Case("bytes above 127 in a header value", says(framed(b"x-a: \xff\xfe", _LENGTH)), ANSWERED, kept=True),
    Case("line feeds in place of CRLF", says(GOOD.replace(b"\r\n", b"\n")), httpx=ANSWERED),
]

INTERIM = [
    Case(
        "an interim answer first",
        says(b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n", GOOD),
        ANSWERED,
        kept=True,
    ),
    Case(
        "interim answers without end",
        endless(b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 100),
        httpx=TOO_LATE,
    ),
    Case(
        "interim answers that trickle in and do not end",
        trickles(b"HTTP/1.1 102 Processing\r\n\r\n"),
        TOO_LATE,
    ),
    Case("only an interim answer", says(b"HTTP/1.1 100 Continue\r\n\r\n"), NO_ANSWER, closes=True),
    Case(
        "an interim answer with a length",
        says(b"HTTP/1.1 102 P\r\ncontent-length: 5\r\n\r\n", GOOD),
        ANSWERED,
        kept=True,
    ),
    Case(
        "a switch to another protocol (101)",
        says(b"HTTP/1.1 101 Switch\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"),
        closes=True,
    ),
    Case(
        "a 200 that names an upgrade",
        says(framed(b"upgrade: h2c", b"connection: upgrade", _LENGTH)),
        ANSWERED,
        kept=True,
    ),
]

LENGTHS = [
    Case("more bytes than announced", says(framed(_LENGTH, body=b"{}{}{}")), ANSWERED),
    Case("fewer bytes than announced, closed", says(framed(b"content-length: 9")), CUT_OFF, closes=True),
    Case("fewer bytes than announced, open", says(framed(b"content-length: 9")), TOO_LATE),
    Case("a length without a body, as for HEAD", says(framed(b"content-length: 9", body=b"")), TOO_LATE),
    Case("a length beyond the limit", says(framed(b"content-length: %d" % (LIMIT + 1))), TOO_LARGE),
    Case("a length of 30 digits", says(framed(b"content-length: " + b"9" * 30))),
    Case("a negative length", says(framed(b"content-length: -2"))),
    Case("a length with a sign", says(framed(b"content-length: +2"))),
    Case("a hexadecimal length", says(framed(b"content-length: 0x2"))),
    Case("an empty length", says(framed(b"content-length: "))),
    Case("the same length twice", says(framed(_LENGTH, _LENGTH)), httpx=ANSWERED),
    Case("two lengths", says(framed(_LENGTH, b"content-length: 3"))),
    Case("a list of equal lengths", says(framed(b"content-length: 2, 2")), httpx=ANSWERED),
    Case(
        "a length and chunks",
        says(framed(_LENGTH, b"transfer-encoding: chunked", body=b"2\r\n{}\r\n0\r\n\r\n")),
        httpx=ANSWERED,
    ),
    Case("no length, ends with the connection", says(STATUS + b"\r\n{}"), ANSWERED, closes=True),
    Case("no length, and no end", says(STATUS + b"\r\n{}"), TOO_LATE),
    Case("no length, more than the limit", endless(STATUS + b"\r\n", b"1" * 65536), TOO_LARGE),
    Case("no length, reset", resets(STATUS + b"\r\n{"), CUT_OFF, httpx=NO_ANSWER),
]

CHUNKS = [
    Case(
        "chunks of two bytes up to the limit",
        says(CHUNKED, _TINY * (LIMIT // 2), b"0\r\n\r\n"),
        "200 ab",
        kept=True,
    ),
    Case("chunks of two bytes without end", endless(CHUNKED, _TINY * 1000), TOO_LARGE),
    Case(
        "a chunk size beyond 64 bits", says(CHUNKED + b"fffffffffffffffff\r\n{}"), httpx=CUT_OFF, closes=True
    ),
    Case("a chunk size of 63 bits", says(CHUNKED + b"7fffffffffffffff\r\n{}"), CUT_OFF, closes=True),
    Case("a negative chunk size", says(CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n")),
    Case("a chunk size that is no number", says(CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n")),
    Case("a chunk size with 0x", says(CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n")),
    Case("a chunk extension", says(CHUNKED + b"2;a=b\r\n{}\r\n0\r\n\r\n"), ANSWERED, kept=True),
    Case("a chunk extension without end", endless(CHUNKED + b"2;a=", b"b" * 1000)),
    Case("zeros before a chunk size without end", endless(CHUNKED, b"0" * 1000)),
    Case("a chunk longer than its size", says(CHUNKED + b"1\r\n{}\r\n0\r\n\r\n")),
    Case("chunks without an end, closed", says(CHUNKED + b"2\r\n{}\r\n"), CUT_OFF, closes=True),
    Case("chunks without an end, open", says(CHUNKED + b"2\r\n{}\r\n"), TOO_LATE),
    Case("line feeds between chunks", says(CHUNKED + b"2\n{}\n0\n\n"), httpx=TOO_LATE),
    Case(
        "a trailer that names a packing",
        says(CHUNKED + b"2\r\n{}\r\n0\r\ncontent-encoding: gzip\r\n\r\n"),
        ANSWERED,
        kept=True,
    ),
    Case("a trailer without end", endless(CHUNKED + b"2\r\n{}\r\n0\r\n", b"x: " + b"x" * 1000 + b"\r\n")),
    Case(
        "chunked twice",
        says(framed(b"transfer-encoding: chunked, chunked", body=b"2\r\n{}\r\n0\r\n\r\n")),
        ANSWERED,
        httpx=NOT_HTTP,
        kept=True,
    ),
    Case(
        "an unknown transfer encoding",
        says(framed(b"transfer-encoding: xyz")),
        CUT_OFF,
        httpx=NOT_HTTP,
        closes=True,
    ),
]

VERSIONS = [
    Case("HTTP/1.0 with a length", says(framed(_LENGTH, status=b"HTTP/1.0 200 OK")), ANSWERED),
    Case(
        "HTTP/1.0 that keeps the connection",
        says(framed(_LENGTH, b"connection: keep-alive", status=b"HTTP/1.0 200 OK")),
        ANSWERED,
        kept=True,
    ),
    Case("HTTP/1.0 without a length", says(b"HTTP/1.0 200 OK\r\n\r\n{}"), ANSWERED, closes=True),
    Case("connection: close, and stays open", says(framed(b"connection: close", _LENGTH)), ANSWERED),
    Case("204 with a body", says(framed(_LENGTH, status=b"HTTP/1.1 204 No")), "204 "),
    Case("304 with a length", says(framed(_LENGTH, status=b"HTTP/1.1 304 No", body=b"")), "304 ", kept=True),
    Case("205 with a body", says(framed(_LENGTH, status=b"HTTP/1.1 205 No")), "205 {}", kept=True),
    Case("a whole second answer", says(GOOD + GOOD), ANSWERED),
    Case("something that is not HTTP behind the answer", says(GOOD + b"SSH-2.0"), ANSWERED),
]

PACKED = [
    Case("gzip", says(_packed(gzip.compress(b"{}"), b"gzip")), ANSWERED, kept=True),
    Case("gzip that unpacks beyond the limit", says(_packed(_BOMB, b"gzip")), TOO_LARGE, kept=True),
    Case("gzip in gzip", says(_packed(_BOMBS, b"gzip, gzip")), TOO_LARGE, kept=True),
    Case("gzip that is none", says(_packed(b"{}", b"gzip")), UNREADABLE, kept=True),
    Case("gzip that is cut off", says(_packed(gzip.compress(b"{}")[:-4], b"gzip")), UNREADABLE, kept=True),
    Case(
        "packed a hundred times",
        says(_packed(b"{}", b", ".join([b"gzip"] * 100))),
        UNREADABLE,
        kept=True,
    ),
]

ENDS = [
    Case("closed without an answer", says(), NO_ANSWER, closes=True),
    Case("reset before the request is read", resets(reads=0), NO_ANSWER, body=LARGE),
    Case("reset within the request", resets(reads=1_000_000), NO_ANSWER, body=LARGE),
    Case("reset without an answer", resets(), NO_ANSWER),
    Case("reset within the head", resets(STATUS), NO_ANSWER),
    Case("reset after an interim answer", resets(b"HTTP/1.1 103 Early\r\n\r\n"), NO_ANSWER),
    Case("reset within the body", resets(framed(b"content-length: 9")), CUT_OFF, httpx=NO_ANSWER),
    Case("closed within the head", says(STATUS), NO_ANSWER, closes=True),
    Case("half closed without an answer", half_closes(), NO_ANSWER),
    Case("half closed within the body", half_closes(framed(b"content-length: 9")), CUT_OFF),
    Case("half closed after the answer", half_closes(GOOD), ANSWERED, closes=True),
    Case("half closed, ends the answer", half_closes(STATUS + b"\r\n{}"), ANSWERED),
    Case(
        "half closed while the request is unsent",
        half_closes(reads_body=False),
        NO_ANSWER,
        httpx=TOO_LATE,
        body=LARGE,
    ),
    Case(
        "answered while the request is unsent",
        early(framed(_LENGTH, status=b"HTTP/1.1 413 Large")),
        "413 {}",
        httpx=TOO_LATE,
        body=LARGE,
    ),
    Case(
        "answered while the request is unsent, then closed",
        early(framed(_LENGTH, status=b"HTTP/1.1 413 Large"), holds=False),
        "413 {}",
        httpx=NO_ANSWER,
        body=LARGE,
        closes=True,
    ),
    Case(
        "answered over TLS while the request is unsent",
        early(framed(_LENGTH, status=b"HTTP/1.1 413 Large")),
        "413 {}",
        httpx=TOO_LATE,
        body=LARGE,
        secure=True,
    ),
    Case("over TLS", says(GOOD), ANSWERED, kept=True, secure=True),
    Case(
        "over TLS, reset within the body",
        resets(framed(b"content-length: 9")),
        CUT_OFF,
        httpx=NO_ANSWER,
        secure=True,
    ),
    Case("over TLS, closed without an answer", says(), NO_ANSWER, closes=True, secure=True),
]

CASES = [*HEADS, *INTERIM, *LENGTHS, *CHUNKS, *VERSIONS, *PACKED, *ENDS]
