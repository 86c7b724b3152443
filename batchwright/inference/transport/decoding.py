"""Decode compressed responses, which some backends send although the request did not allow them."""

import zlib

import httpx

from batchwright.inference.transport.base import BackendResponse, ResponseTooLarge

_GZIP = zlib.MAX_WBITS | 16
_MAX_LAYERS = 4  # maximum number of encodings of one response


def decode_content(answer: BackendResponse, max_bytes: int) -> bytes:
    """Return the decompressed body of a response.

    Only the encodings gzip and deflate are decompressed. If the body has another encoding, it stays encoded.

    Raises:
        ResponseTooLarge: after a step of decompression, the body is larger than `max_bytes`.
        httpx.DecodingError: the body is damaged, or compressed too many times.
    """
    encodings = answer.headers.get(b"content-encoding")
    if encodings is None:
        return answer.body
    layers = [name for part in encodings.split(b",") if (name := part.strip().lower()) != b"identity"]
    if len(layers) > _MAX_LAYERS:
        raise httpx.DecodingError(f"it is compressed {len(layers)} times")
    body = answer.body
    for name in reversed(layers):
        if name in (b"gzip", b"x-gzip", b"deflate"):
            body = _decode_layer(body, name, max_bytes)
    return body


def _decode_layer(data: bytes, name: bytes, max_bytes: int) -> bytes:
    if not data:
        return b""
    try:
        if name != b"deflate":
            return _inflate(data, _GZIP, max_bytes)
        try:
            return _inflate(data, zlib.MAX_WBITS, max_bytes)
        except zlib.error:  # some servers omit the zlib header
            return _inflate(data, -zlib.MAX_WBITS, max_bytes)
    except zlib.error as error:
        raise httpx.DecodingError(str(error)) from error


def _inflate(data: bytes, bits: int, max_bytes: int) -> bytes:
    """Return the decompressed data. `bits` is zlib's `wbits`, which selects the compression format.

    Raises:
        ResponseTooLarge: the decompressed data is larger than `max_bytes`.
        zlib.error: the data is damaged or ends too early.
    """
    decoder = zlib.decompressobj(bits)
    plain = decoder.decompress(data, max_bytes + 1)
    if len(plain) > max_bytes:
        raise ResponseTooLarge
    if not decoder.eof:
        raise zlib.error("it ends too early")
    return plain
