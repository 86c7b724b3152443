"""Make fingerprints of the `custom_id`s of a batch.

With the fingerprints, the database finds the batches that have a line with a certain `custom_id`.

A fingerprint has 48 bits of a hash. The fingerprints of a large batch are stored in several parts. In each
part, a search compares the fingerprint of the wanted `custom_id` with about 256 stored fingerprints. Two
different custom ids can have the same fingerprint. Then a search finds a wrong batch. The probability of a
wrong batch is below 1 in 10^11, so found batches are not verified.
"""

import secrets
import struct
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

from batchwright.rules.growing_bytes import NewBytes

_PART_LINES = 262_144  # a part takes about 2 MB, and a multiple of it while it is made and stored
_BUCKET_LINES = 256  # on average; even the fullest bucket then has less than 2 KB
_ROW = struct.Struct(">H6s")  # the place of a hash, and its fingerprint
_PLACES = 2**16


class CustomIdPart(NamedTuple):
    """Fingerprints of up to 262,144 custom ids, divided into buckets of about 256.

    The hash of a custom id is the SHA-256 of `salt` and the id in UTF-8. The first two bytes of the hash are
    the number `place`. With `n` buckets, the id belongs to the bucket with the index `place * n // 65536`.
    The next six bytes of the hash are the fingerprint. The fingerprints in a bucket have no order. The SQL
    function `contains_custom_id` searches in the same way.

    Attributes:
        salt: random bytes that are hashed together with each custom id.
        bucket_bytes: size of a bucket, the same for all buckets. A bucket that is not full ends with zeros.
        buckets: all buckets, one after the other.
    """

    salt: bytes
    bucket_bytes: int
    buckets: bytes

    def contains(self, custom_id: str) -> bool:
        digest = sha256(self.salt + encode_custom_id(custom_id)).digest()
        place, fingerprint = _ROW.unpack_from(digest)
        start = self.bucket_bytes * _bucket(place, len(self.buckets) // self.bucket_bytes)
        return fingerprint in self.buckets[start : start + self.bucket_bytes]


class CustomIdIndex:
    """A collection of the custom ids of an input. It takes 8 bytes for each custom id.

    The hashes use new random bytes (a salt) for each index. So no client can construct custom ids whose
    hashes are similar.
    """

    def __init__(self, new_bytes: NewBytes) -> None:
        self._salt, self._rows = secrets.token_bytes(16), new_bytes()

    def add_all(self, custom_ids: list[str]) -> None:
        """Add the custom ids of the next lines. One call for many lines takes less time than many calls."""
        salt, size = self._salt, _ROW.size
        self._rows.append(
            b"".join([sha256(salt + encode_custom_id(one)).digest()[:size] for one in custom_ids])
        )

    def parts(self) -> Iterator[CustomIdPart]:
        """Yield the parts of the index, one for each 262,144 custom ids.

        If another attempt of the activity makes the parts again, their salt is different, but part N contains
        the custom ids of the same lines. So parts from different attempts can be used together.
        """
        return (_part(self._salt, rows) for rows in self._rows.pieces(_PART_LINES * _ROW.size))


def encode_custom_id(custom_id: str) -> bytes:
    """Return the bytes from which the hash of a custom id is computed."""
    return custom_id.encode("utf-8", "surrogatepass")


def _bucket(place: int, buckets: int) -> int:
    return place * buckets // _PLACES


def _part(salt: bytes, rows: bytes) -> CustomIdPart:
    count = -(-len(rows) // (_BUCKET_LINES * _ROW.size))
    buckets = [bytearray() for _ in range(count)]
    for place, fingerprint in _ROW.iter_unpack(rows):
        buckets[_bucket(place, count)] += fingerprint
    size = max(map(len, buckets))
    return CustomIdPart(salt, size, b"".join([bucket.ljust(size, b"\0") for bucket in buckets]))
