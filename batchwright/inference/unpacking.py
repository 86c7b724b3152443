"""Answers that a backend has packed, though plain ones were asked for."""

from collections.abc import Iterator

import httpx

from batchwright.inference.engine import Answer, AnswerTooLarge

_PIECE_BYTES = 8 * 1024


class _Pieces(httpx.SyncByteStream):
    """Small pieces, so that what each of them unpacks to is bounded."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._data), _PIECE_BYTES):
            yield self._data[start : start + _PIECE_BYTES]


def unpacked(answer: Answer, most_bytes: int) -> bytes:
    """The body as it was meant. Raises AnswerTooLarge, httpx.DecodingError."""
    if b"content-encoding" not in answer.headers:
        return answer.body
    packed = httpx.Response(200, headers=list(answer.headers.items()), stream=_Pieces(answer.body))
    pieces: list[bytes] = []
    size = 0
    for piece in packed.iter_bytes():
        size += len(piece)
        if size > most_bytes:
            raise AnswerTooLarge
        pieces.append(piece)
    return b"".join(pieces)
