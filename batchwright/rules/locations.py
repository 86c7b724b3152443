"""Where objects lie, from the URL that a setting gives."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_PREFIX = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*)?")


@dataclass(frozen=True)
class Directory:
    path: Path


@dataclass(frozen=True)
class Bucket:
    name: str
    prefix: str  # before every key, with its slash; empty: keys as they are

    @property
    def url(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")


def location(url: str) -> Directory | Bucket:
    """`file:///directory` or `s3://bucket/prefix`.

    Raises:
        ValueError: it is neither.
    """
    parts = urlsplit(url)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("it takes no user, query or fragment: keys and options of S3 come from elsewhere")
    match parts.scheme:
        case "s3":
            return _bucket(parts.netloc, parts.path.strip("/"))
        case "file" if parts.netloc in ("", "localhost") and parts.path.startswith("/"):
            return Directory(Path(unquote(parts.path)))
        case _:
            raise ValueError("it is neither s3://bucket/prefix nor file:///directory")


def _bucket(name: str, prefix: str) -> Bucket:
    if _BUCKET.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of a bucket")
    if _PREFIX.fullmatch(prefix) is None:
        raise ValueError(f"{prefix!r} is no prefix: parts of [A-Za-z0-9._-] joined by '/'")
    return Bucket(name, prefix and prefix + "/")
