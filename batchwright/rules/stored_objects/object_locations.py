"""Parse URLs of objects (`s3://bucket/key`) and of prefixes, and check if a location is within a prefix.

Clients name objects by their URL. A prefix is the beginning of the keys of several objects. The operator's
settings allow certain prefixes.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KEY = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
_MAX_KEY_BYTES = 1024  # S3's limit
_MAX_OUTPUT_NAME_BYTES = 100  # batch_..._output.jsonl
_WRONG_FORM = "it must have the form s3://bucket/key"
MAX_URL_CHARACTERS = len(SCHEME) + 63 + 1 + _MAX_KEY_BYTES


class ObjectLocation(NamedTuple):
    """The location of an object or a prefix in a bucket.

    A prefix is the common beginning of several object keys. If the location is a prefix, `key` is empty or
    ends with a slash.
    """

    bucket: str
    key: str

    @property
    def name(self) -> str:
        """Last part of the object key, after the last slash, as a file name."""
        return self.key.rpartition("/")[2]


def parse_object(url: str) -> ObjectLocation:
    """Parse the URL of an object, `s3://bucket/key`.

    Raises:
        ValueError: the URL has another form. The message shows the right form.
    """
    bucket, _, key = url.removeprefix(SCHEME).partition("/")
    if not (url.startswith(SCHEME) and bucket and key):
        raise ValueError(_WRONG_FORM)
    if _BUCKET.fullmatch(bucket) is None:
        raise ValueError("its bucket must have 3 to 63 small letters, digits, '.' or '-'")
    if _KEY.fullmatch(key) is None or len(key.encode()) > _MAX_KEY_BYTES:
        raise ValueError(f"its key must have 1 to {_MAX_KEY_BYTES} bytes and no control characters")
    # Servers and proxies may resolve such parts as they do in paths of URLs.
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise ValueError("no part of its key may be empty, '.' or '..'")
    return ObjectLocation(bucket, key)


def parse_prefix(url: str) -> ObjectLocation:
    """Parse the URL of a prefix: `s3://bucket` or `s3://bucket/prefix`, with or without a slash at the end.

    A prefix is the beginning of the keys of several objects.

    Raises:
        ValueError: the URL has another form.
    """
    folder = url.removesuffix("/")
    try:
        location = parse_object(f"{folder}/any")  # an object there
    except ValueError as error:
        reason = "" if str(error) == _WRONG_FORM else f": {error}"
        raise ValueError(f"{url!r} does not have the form s3://bucket/prefix/{reason}") from None
    return location._replace(key=location.key.removesuffix("any"))


def parse_output_location(url: str) -> ObjectLocation:
    """Parse the URL of the location for a batch's output files: `s3://bucket/prefix`.

    The keys of the files will begin with this prefix.

    Raises:
        ValueError: the URL has another form, or is so long that no file name can be appended.
    """
    prefix = parse_prefix(url)
    if len(prefix.key.encode()) + _MAX_OUTPUT_NAME_BYTES > _MAX_KEY_BYTES:
        raise ValueError(f"a prefix has at most {_MAX_KEY_BYTES - _MAX_OUTPUT_NAME_BYTES} bytes")
    return prefix


def is_within(location: ObjectLocation, prefixes: Iterable[ObjectLocation]) -> bool:
    return any(
        location.bucket == prefix.bucket and location.key.startswith(prefix.key) for prefix in prefixes
    )
