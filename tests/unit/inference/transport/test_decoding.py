"""Compressed responses: which ones are decoded, and which ones are rejected."""

import gzip
import zlib

import httpx
import pytest

from batchwright.inference.transport.base import BackendResponse, ResponseTooLarge
from batchwright.inference.transport.decoding import decode_content

PLAIN = b'{"choices":[]}'
LIMIT = 1000
_RAW = zlib.compress(PLAIN)[2:-4]


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (b"gzip", gzip.compress(PLAIN)),
        (b"X-GZIP", gzip.compress(PLAIN)),
        (b"deflate", zlib.compress(PLAIN)),
        (b"deflate", _RAW),
        (b"identity", PLAIN),
        (b"", PLAIN),
        (b"deflate, identity ,gzip", gzip.compress(zlib.compress(PLAIN))),
        (b"an-unknown-one", PLAIN),
    ],
    ids=["gzip", "x-gzip", "zlib", "deflate without its head", "identity", "none", "twice", "unknown"],
)
def test_a_compressed_body_is_decompressed(encoding: bytes, body: bytes) -> None:
    assert decode_content(BackendResponse(200, {b"content-encoding": encoding}, body), LIMIT) == PLAIN


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"gzip, gzip", b"gzip," * 4 + b"gzip"])
def test_a_body_that_is_not_what_it_says_is_refused(encoding: bytes) -> None:
    with pytest.raises(httpx.DecodingError):
        decode_content(BackendResponse(200, {b"content-encoding": encoding}, PLAIN), LIMIT)


def test_a_truncated_compressed_body_is_refused() -> None:
    answer = BackendResponse(200, {b"content-encoding": b"gzip"}, gzip.compress(PLAIN)[:-1])
    with pytest.raises(httpx.DecodingError):
        decode_content(answer, LIMIT)


@pytest.mark.parametrize(("size", "fits"), [(LIMIT, True), (LIMIT + 1, False)])
def test_a_body_may_be_as_large_as_the_limit(size: int, fits: bool) -> None:
    answer = BackendResponse(200, {b"content-encoding": b"gzip"}, gzip.compress(b"1" * size))
    if fits:
        assert len(decode_content(answer, LIMIT)) == size
    else:
        with pytest.raises(ResponseTooLarge):
            decode_content(answer, LIMIT)
