"""What a file is that can be no batch's input, as its first bytes tell."""

from pathlib import Path

_PACKED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def objection(path: Path) -> str:
    """With the remedy; empty where there is none. Pipes are not looked into: what is read of them is gone.

    Raises:
        OSError: it cannot be read.
    """
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        start = file.read(8)
    if not start:
        return f"{path} is empty: a batch has at least one line, a JSON object."
    if start.startswith(_UTF_16):
        return f"{path} is text in UTF-16: `iconv -f utf-16 -t utf-8` makes UTF-8 of it."
    packed = next((name for first, name in _PACKED.items() if start.startswith(first)), None)
    return f"{path} is packed with {packed}: unpack it first." if packed else ""
