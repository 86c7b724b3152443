"""Detects input files in a wrong format, such as compressed files, by their first bytes."""

from pathlib import Path

from batchwright.rules.input.compression import compression_of

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
}
START_BYTES = 8
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def format_problem(path: Path, *, may_be_compressed: bool = False) -> str:
    """Return why a file cannot be the input of a batch, with a remedy; empty if the file can be an input.

    Pipes are not checked, because they can be read only once.

    Args:
        may_be_compressed: True to allow gzip and zstd. Use this if the file is uploaded, because the API
            decompresses it.

    Raises:
        OSError: the file cannot be read.
    """
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        start = file.read(START_BYTES)
    return "" if may_be_compressed and compression_of(start) else start_problem(start, str(path))


def start_problem(start: bytes, name: str) -> str:
    """Return why a file that begins with `start` cannot be the input of a batch; empty if it can be an input.

    Args:
        start: the first `START_BYTES` bytes of the file.
        name: name of the file, for the message.
    """
    if not start:
        return f"{name} is empty: a batch has at least one line, a JSON object."
    if start.startswith(_UTF_16):
        return f"{name} is UTF-16 text: `iconv -f utf-16 -t utf-8` converts it to UTF-8."
    packed = next((packer for first, packer in _COMPRESSED.items() if start.startswith(first)), None)
    return f"{name} is compressed with {packed}: decompress it first." if packed else ""
