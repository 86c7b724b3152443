"""Answers that a backend has packed, though plain ones were asked for."""

import zlib

import httpx

from batchwright.inference.engine import Answer, AnswerTooLarge

_GZIP = zlib.MAX_WBITS | 16
_MOST_LAYERS = 4  # one is usual; each is unpacked whole


def unpacked(answer: Answer, most_bytes: int) -> bytes:
    """The body as it was meant; no layer of it takes more than `most_bytes`, however often it was packed.

    An encoding that is not known leaves it as it came: whether it is JSON is looked at anyway.

    Raises AnswerTooLarge, httpx.DecodingError.
    """
    said = answer.headers.get(b"content-encoding")
    if said is None:
        return answer.body
    layers = [name for part in said.split(b",") if (name := part.strip().lower()) != b"identity"]
    if len(layers) > _MOST_LAYERS:
        raise httpx.DecodingError(f"it is packed {len(layers)} times")
    body = answer.body
    for name in reversed(layers):
        if name in (b"gzip", b"x-gzip", b"deflate"):
            body = _plain(body, name, most_bytes)
    return body


def _plain(packed: bytes, name: bytes, most_bytes: int) -> bytes:
    if not packed:
        return b""
    try:
        if name != b"deflate":
            return _inflated(packed, _GZIP, most_bytes)
        try:
            return _inflated(packed, zlib.MAX_WBITS, most_bytes)
        except zlib.error:  # some leave zlib's head away
            return _inflated(packed, -zlib.MAX_WBITS, most_bytes)
    except zlib.error as error:
        raise httpx.DecodingError(str(error)) from error


def _inflated(packed: bytes, bits: int, most_bytes: int) -> bytes:
    """Raises AnswerTooLarge, zlib.error."""
    unpacking = zlib.decompressobj(bits)
    plain = unpacking.decompress(packed, most_bytes + 1)
    if len(plain) > most_bytes:
        raise AnswerTooLarge
    if not unpacking.eof:
        raise zlib.error("it ends too early")
    return plain
