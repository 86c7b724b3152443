"""Parse the filters of the list of batches, and make the tags by which the database finds batches.

A tag is a hash of one metadata pair, one model or the endpoint of a batch. The database finds the batches
that match a filter by their tags.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import NamedTuple

from batchwright.contracts.terms import BatchStatus, Endpoint
from batchwright.rules.pagination import BadParameter

METADATA_PREFIX = "metadata["
MAX_METADATA_PAIRS = 16  # maximum of a batch, so no batch matches a filter with more pairs
MAX_CUSTOM_ID_CHARACTERS = 1024
LAST_TIME = 253_402_300_799  # the end of the year 9999, in seconds
_SECONDS = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_TAG_BYTES = 16


class BatchFilters(NamedTuple):
    """Conditions for batches in a list. A batch must meet all of them. None means no condition.

    Attributes:
        status: the status that clients see, which can also be `cancelling`.
        model: one of the models of the batch. Before its input is validated, a batch has no models.
        created_after: the batch was created at or after this time.
        created_before: the batch was created before this time.
        metadata: the batch's metadata contains all these (key, value) pairs.
        endpoint: endpoint of the batch.
    """

    status: BatchStatus | None = None
    model: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    endpoint: Endpoint | None = None

    @property
    def tags(self) -> list[bytes]:
        """Tags (hashes) by which the database finds the batches that match these filters.

        Tags of metadata come first, because the fewest batches have such a tag.
        """
        tags = metadata_tags(self.metadata)
        if self.model is not None:
            tags += model_tags([self.model])
        return tags if self.endpoint is None else [*tags, endpoint_tag(self.endpoint)]


NO_FILTERS = BatchFilters()


def metadata_tags(pairs: Iterable[tuple[str, str]]) -> list[bytes]:
    """Return the tags (hashes) that the database stores for a batch with these metadata pairs.

    There is one tag for each pair of key and value.
    """
    return [_tag(b"metadata", f"{key}\0{value}") for key, value in dict.fromkeys(pairs)]


def model_tags(models: Iterable[str]) -> list[bytes]:
    """Return the tags (hashes) that the database stores for a batch with these models, one for each model."""
    return [_tag(b"model", model) for model in dict.fromkeys(models)]


def endpoint_tag(endpoint: Endpoint) -> bytes:
    """Return the tag (hash) that the database stores for a batch with this endpoint."""
    return _tag(b"endpoint", endpoint)


def status_filter(text: str | None) -> BatchStatus | None:
    """Return the status that the query parameter `status` names; None if `text` is None.

    Raises:
        BadParameter: there is no such status.
    """
    if text is None or text in frozenset(BatchStatus):
        return None if text is None else BatchStatus(text)
    *names, last = (f"'{status}'" for status in BatchStatus)
    message = f"Invalid value: '{text}'. Supported values are: {', '.join(names)} and {last}."
    raise BadParameter(message, code="invalid_value", param="status")


def time_filter(text: str | None, param: str) -> datetime | None:
    """Return the time in the query parameter `param`, a Unix time in seconds; None if `text` is None.

    Raises:
        BadParameter: the text is not an integer, or the time is not in the years 1970 to 9999.
    """
    if text is None:
        return None
    if _SECONDS.fullmatch(text) is None:
        message = (
            f"Invalid type for '{param}': expected an integer, but got a string instead. "
            "Send a Unix time in seconds."
        )
        raise BadParameter(message, code="invalid_type", param=param)
    if not 0 <= int(text) <= LAST_TIME:
        message = f"Invalid '{param}': {text} is not a Unix time in seconds of the years 1970 to 9999."
        raise BadParameter(message, code="invalid_value", param=param)
    return datetime.fromtimestamp(int(text), UTC)


def custom_id_filter(text: str | None) -> str | None:
    """Check the query parameter `custom_id`, and return it unchanged. None means that it was not sent.

    Raises:
        BadParameter: the text is empty, or longer than MAX_CUSTOM_ID_CHARACTERS.
    """
    if text is not None and not 1 <= len(text) <= MAX_CUSTOM_ID_CHARACTERS:
        message = (
            f"Invalid 'custom_id': expected 1 to {MAX_CUSTOM_ID_CHARACTERS} characters, but got {len(text)}."
        )
        raise BadParameter(message, code="invalid_value", param="custom_id")
    return text


def metadata_filter(query: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the (key, value) pairs of the query parameters `metadata[key]=value`, without repetitions.

    Raises:
        BadParameter: a parameter begins with `metadata` but does not have this form, a key has two values, or
            there are more than MAX_METADATA_PAIRS pairs.
    """
    pairs: dict[str, str] = {}
    for key, value in _metadata_pairs(query):
        if pairs.setdefault(key, value) != value:
            raise _invalid_metadata(f"the key '{key[:64]}' has two values. Send each key once.")
    if len(pairs) > MAX_METADATA_PAIRS:
        raise _invalid_metadata(f"at most {MAX_METADATA_PAIRS} pairs are allowed, but got {len(pairs)}.")
    return tuple(pairs.items())


def _metadata_pairs(query: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, value in query:
        if name.startswith(METADATA_PREFIX) and name.endswith("]"):
            yield name[len(METADATA_PREFIX) : -1], value
        elif name == "metadata" or name.startswith(METADATA_PREFIX):
            raise _invalid_metadata("send metadata[key]=value, once for each pair.")


def _invalid_metadata(detail: str) -> BadParameter:
    return BadParameter(f"Invalid 'metadata': {detail}", code="invalid_value", param="metadata")


def _tag(kind: bytes, text: str) -> bytes:
    return blake2b(text.encode(errors="replace"), digest_size=_TAG_BYTES, person=kind).digest()
