"""Compressed files are expanded in bounded memory, whatever they contain."""

import gzip
import random
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from batchwright.rules.input import compression as compression_module
from batchwright.rules.input.compression import (
    Compression,
    DamagedArchive,
    Expander,
    compression_of,
    expanded_name,
    zstd,
)

MIB = 1024 * 1024
TEXT = b"".join(b'{"custom_id":"%d","body":{"n":%d}}\n' % (n, n * n) for n in range(5_000))
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00size"


def expanded(data: bytes, compression: Compression, piece_bytes: int = 65_536) -> bytes:
    expander = Expander(compression)
    pieces = (data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes))
    whole = b"".join([part for piece in pieces for part in expander.feed(piece)])
    expander.finish()
    return whole


# Functions, because every process that collects these tests would compress all of it.
FILES: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: gzip.compress(TEXT),
    "gzip members": lambda: gzip.compress(TEXT[:1000]) + gzip.compress(b"") + gzip.compress(TEXT[1000:]),
    "gzip with padding": lambda: gzip.compress(TEXT) + 3000 * b"\0",
    "zstd": lambda: zstd.compress(TEXT),
    "zstd frames": lambda: zstd.compress(TEXT[:1000]) + SKIPPABLE + zstd.compress(TEXT[1000:]),
    "parallel zstd": lambda: SKIPPABLE + zstd.compress(TEXT, 19),
}


@cache
def file_of(name: str) -> bytes:
    return FILES[name]()


@pytest.mark.parametrize("piece_bytes", [1, 1000, 10 * MIB])
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_expanded_whatever_its_pieces(name: str, piece_bytes: int) -> None:
    data = file_of(name)
    compression = Compression.GZIP if name.startswith("gzip") else Compression.ZSTD
    assert compression_of(data[:4]) is compression
    assert expanded(data, compression, piece_bytes) == TEXT


def _bomb(compression: Compression) -> bytes:
    """Return 128 MiB of zeros, compressed."""
    if compression is Compression.ZSTD:
        frame = zstd.ZstdCompressor(1)
        return b"".join([frame.compress(bytes(64 * MIB)) for _ in range(2)]) + frame.flush()
    member = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join([member.compress(bytes(64 * MIB)) for _ in range(2)]) + member.flush()


@pytest.mark.parametrize("compression", Compression)
def test_a_bomb_comes_in_small_pieces(compression: Compression) -> None:
    pieces: Iterator[bytes] = Expander(compression).feed(_bomb(compression))
    assert all(len(next(pieces)) <= MIB for _ in range(100))


class Steps:
    """A counter of the compressed members that are begun, and of the bytes that each step of their expansion
    gets.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.members, self.sizes = 0, list[int]()
        counted = {format: self._counted(member) for format, member in compression_module._MEMBERS.items()}  # pyright: ignore[reportPrivateUsage]
        patch.setattr(compression_module, "_MEMBERS", counted)

    def _counted(self, begin: Callable[[], Any]) -> Callable[[], Any]:
        def counted() -> Any:
            self.members += 1
            member = begin()
            expand = member.expand

            def recorded(data: bytes) -> Iterator[bytes]:
                self.sizes.append(len(data))
                return expand(data)

            member.expand = recorded
            return member

        return counted


EMPTY_FRAME = b"\x50\x2a\x4d\x18\x00\x00\x00\x00"


@pytest.mark.parametrize(
    ("member", "compression"),
    [
        (EMPTY_FRAME, Compression.ZSTD),
        (zstd.compress(b""), Compression.ZSTD),
        (zstd.compress(b"\n"), Compression.ZSTD),
        (gzip.compress(b""), Compression.GZIP),
        (gzip.compress(b"\n"), Compression.GZIP),
    ],
    ids=["skippable", "zstd empty", "zstd one byte", "gzip empty", "gzip one byte"],
)
@pytest.mark.parametrize("piece_bytes", [7, 64 * 1024, MIB])
def test_many_members_that_are_almost_empty_are_refused_soon(
    monkeypatch: pytest.MonkeyPatch, member: bytes, compression: Compression, piece_bytes: int
) -> None:
    steps = Steps(monkeypatch)
    with pytest.raises(DamagedArchive, match=r"parts that have less than 256 bytes on average, so expand it"):
        expanded(member * 20_000, compression, piece_bytes)
    assert steps.members < 1_100


@pytest.mark.parametrize("compression", Compression)
def test_members_after_a_large_one_are_counted_against_its_bytes(
    monkeypatch: pytest.MonkeyPatch, compression: Compression
) -> None:
    steps = Steps(monkeypatch)
    pack = gzip.compress if compression is Compression.GZIP else zstd.compress
    with pytest.raises(DamagedArchive, match="expand it and compress it again"):
        expanded(pack(bytes(256 * 500)) + pack(b"") * 3_000, compression)
    assert steps.members == 1_500


@pytest.mark.parametrize("compression", Compression)
def test_many_small_members_are_expanded_in_short_steps_to_long_pieces(
    monkeypatch: pytest.MonkeyPatch, compression: Compression
) -> None:
    steps = Steps(monkeypatch)
    pack = gzip.compress if compression is Compression.GZIP else zstd.compress
    lines = [b'{"custom_id":"%d","text":"%s"}\n' % (n, 300 * b"x") for n in range(3_000)]
    pieces = list(Expander(compression).feed(b"".join(map(pack, lines))))
    assert (b"".join(pieces), len(pieces), steps.members) == (b"".join(lines), 1, len(lines))
    assert max(steps.sizes) <= 16 * 1024  # what follows a member is copied once for each member


@pytest.mark.parametrize("compression", Compression)
def test_a_cut_file_is_reported_with_its_place(compression: Compression) -> None:
    data = (gzip.compress(TEXT) if compression is Compression.GZIP else zstd.compress(TEXT))[:-10]
    lines = b"".join(Expander(compression).feed(data)).count(b"\n")
    reason = rf"ends too early\. This is within the first {len(data)} bytes .* in line {lines + 1} of"
    with pytest.raises(DamagedArchive, match=reason):
        expanded(data, compression)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("compression", Compression)
def test_a_damaged_file_is_never_taken_for_another(compression: Compression, seed: int) -> None:
    chance = random.Random(seed)
    packed = gzip.compress(TEXT) if compression is Compression.GZIP else _checked_zstd(TEXT)
    data = bytearray(packed)
    at = chance.randrange(10, len(data))  # the header of gzip has a time, which does not matter
    data[at] ^= 1 << chance.randrange(8)
    with pytest.raises(DamagedArchive, match=r"^The (gzip|zstd) file cannot be expanded: .*\.$"):
        expanded(bytes(data), compression)


def _checked_zstd(text: bytes) -> bytes:
    return zstd.compress(text, options={zstd.CompressionParameter.checksum_flag: 1})


@pytest.mark.parametrize("compression", Compression)
def test_other_bytes_after_the_end_are_refused(compression: Compression) -> None:
    data = gzip.compress(TEXT) if compression is Compression.GZIP else zstd.compress(TEXT)
    with pytest.raises(DamagedArchive):
        expanded(data + b"more", compression)


def test_a_zstd_file_that_needs_much_memory_is_refused_with_a_remedy() -> None:
    frame = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    data = frame.compress(TEXT) + frame.flush()
    with pytest.raises(DamagedArchive, match="compress it without --long and --ultra"):
        expanded(data, Compression.ZSTD)


@pytest.mark.parametrize(
    "start", [b'{"a"', b"[1,2", b"\xef\xbb\xbf{", b"  {}", b"", b"PK\x03\x04", b"\x28\xb5"]
)
def test_other_files_are_not_compressed(start: bytes) -> None:
    assert compression_of(start) is None


def test_the_ending_of_the_name_goes_with_the_compression() -> None:
    names = ["a.jsonl.gz", "a.jsonl.zst", "a.jsonl.ZSTD", "a.jsonl", "gz"]
    assert [expanded_name(name) for name in names] == ["a.jsonl", "a.jsonl", "a.jsonl", "a.jsonl", "gz"]
