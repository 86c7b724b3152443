"""Ids and safe names (R11): new ones sort by time, derived ones are the same on every attempt."""

import re
from hashlib import blake2b

import uuid_utils

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")
_BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
_FILE_ID = re.compile(r"file-[0-9a-f]{32}")
_UPLOAD_ID = re.compile(r"upload_[0-9a-f]{32}")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def new_batch_id() -> str:
    return "batch_" + uuid_utils.uuid7().hex


def new_file_id() -> str:
    return "file-" + uuid_utils.uuid7().hex


def new_upload_id() -> str:
    return "upload_" + uuid_utils.uuid7().hex


def new_part_id() -> str:
    return "part_" + uuid_utils.uuid7().hex


def derived_file_id(batch_id: str, kind: str) -> str:
    """The id of a batch's `output` or `error` file: equal on every attempt to write it."""
    return "file-" + _digest(f"{batch_id}/{kind}", 16)


def event_id(batch_id: str, status: str) -> str:
    """`evt_...` of a batch's end: equal on every delivery, so that receivers can tell repeats."""
    return "evt_" + _digest(f"{batch_id}/{status}", 16)


def request_id(batch_id: str, offset: int) -> str:
    """`batch_req_...` of the line at `offset` of the input: equal on every attempt."""
    return "batch_req_" + blake2b(b"%b/%d" % (batch_id.encode(), offset), digest_size=16).hexdigest()


class RequestIds:
    """The same for many lines of a batch: what they have in common is hashed once."""

    def __init__(self, batch_id: str) -> None:
        self._begun = blake2b(b"%b/" % batch_id.encode(), digest_size=16)

    def of(self, offset: int) -> str:
        digest = self._begun.copy()
        digest.update(b"%d" % offset)
        return "batch_req_" + digest.hexdigest()


def tenant_hash(tenant: str) -> str:
    """What stands for a tenant in storage keys."""
    return _digest(tenant, 8)


def safe_name(model: str) -> str:
    """The model's name as a part of queue names, keys and workflow ids; injective (S0-21).

    `org/model-A:1` becomes `org_model_A_1-` and six hex digits; a name that needs no change keeps itself.
    """
    safe = _UNSAFE.sub("_", model)[:100]
    return safe if safe == model else f"{safe}-{_digest(model, 3)}"


def is_batch_id(text: str) -> bool:
    return _BATCH_ID.fullmatch(text) is not None


def is_file_id(text: str) -> bool:
    return _FILE_ID.fullmatch(text) is not None


def is_upload_id(text: str) -> bool:
    return _UPLOAD_ID.fullmatch(text) is not None


def is_tenant(text: str) -> bool:
    return _TENANT.fullmatch(text) is not None


def _digest(text: str, size: int) -> str:
    return blake2b(text.encode(), digest_size=size).hexdigest()
