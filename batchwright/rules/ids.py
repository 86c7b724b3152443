"""Make and check ids, and make names of models that are safe in object keys and queue names.

New ids sort by time. Ids that are computed from other ids are the same each time. The database makes the ids
of the audit log.
"""

import re
from hashlib import blake2b

import uuid_utils

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")
_BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
_FILE_ID = re.compile(r"file-[0-9a-f]{32}")
_UPLOAD_ID = re.compile(r"upload_[0-9a-f]{32}")
_WEBHOOK_ID = re.compile(r"webhook_[0-9a-f]{32}")
_DELIVERY_ID = re.compile(r"wh_[0-9a-f]{32}")
_SCHEDULE_ID = re.compile(r"schedule_[0-9a-f]{32}")
_AUDIT_ENTRY_ID = re.compile(r"act_[0-9a-f]{32}")
_CALL_ID = re.compile(r"(?:resp_|chatcmpl-|job_)[0-9a-f]{32}")
_SAFE_CHARACTERS = 100
MAX_MODEL_NAME_CHARACTERS = 256
_REPLACEMENT = "\ufffd"
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def new_batch_id() -> str:
    return "batch_" + uuid_utils.uuid7().hex


def made_at(batch_id: str) -> float | None:
    """Return when `new_batch_id` made the id of a batch, in Unix seconds.

    Ids of `batch_id_of_run` contain no time. For most of them, the result is None. For about 1 in 64 of them,
    the result is a random time.
    """
    digits = batch_id.removeprefix("batch_")
    is_uuid7 = digits[12] == "7" and digits[16] in "89ab"
    return int(digits[:12], 16) / 1000 if is_uuid7 else None


def batch_id_of_run(run_id: str) -> str:
    """Return the id of the batch that one run of a batch schedule creates.

    `run_id` is the id of Temporal's workflow run. The same run always gets the same batch id.
    """
    return "batch_" + _digest(run_id, 16)


def message_batch_id(batch_id: str) -> str:
    """Return the id of a batch in Anthropic's API: `msgbatch_X` for the batch `batch_X`."""
    return "msg" + batch_id


def batch_id_of(message_batch_id: str) -> str | None:
    """Return the id of a batch from its id in Anthropic's API; None if the text is not such an id."""
    batch_id = message_batch_id.removeprefix("msg")
    return batch_id if batch_id != message_batch_id and is_batch_id(batch_id) else None


def new_file_id() -> str:
    return "file-" + uuid_utils.uuid7().hex


def new_upload_id() -> str:
    return "upload_" + uuid_utils.uuid7().hex


def new_part_id() -> str:
    return "part_" + uuid_utils.uuid7().hex


def derived_file_id(batch_id: str, kind: str) -> str:
    """Return the id of a file that Batchwright writes for a batch.

    Each attempt to write the file gets the same id. `kind` is `output`, `error` or `input`. Batchwright
    writes the input file of a rolling batch from single calls. If a schedule creates a batch from an object
    in a bucket, Batchwright writes the input file from this object.
    """
    return "file-" + _digest(f"{batch_id}/{kind}", 16)


def new_schedule_id() -> str:
    return "schedule_" + uuid_utils.uuid7().hex


def new_webhook_id() -> str:
    return "webhook_" + uuid_utils.uuid7().hex


def webhook_id_of_batch(batch_id: str) -> str:
    """Return the id of the webhook endpoint that was created together with a batch."""
    return "webhook_" + batch_id.removeprefix("batch_")


def new_delivery_id() -> str:
    return "wh_" + uuid_utils.uuid7().hex


def new_call_id(prefix: str) -> str:
    """Return the id of a new call, a single request that the client sends without a file.

    `prefix` is `resp_`, `chatcmpl-` or `job_`, depending on the endpoint to which the call was sent.
    """
    return prefix + uuid_utils.uuid7().hex


def webhook_id_of_call(call_id: str) -> str:
    """Return the id of the webhook endpoint that was created together with a call."""
    return "webhook_" + call_id[-32:]


def call_group(*parts: str) -> str:
    """Return the name of a group of calls. Calls of the same group may run in the same batch.

    A call is a single request that a client sends without a file.

    Args:
        parts: the properties that all calls of the group have in common, such as endpoint and model.
    """
    return _digest("\0".join(parts), 16)


def new_event_id() -> str:
    return "evt_" + uuid_utils.uuid7().hex


def request_id(batch_id: str, offset: int) -> str:
    """Return the `batch_req_...` id of a line. The same line always gets the same id.

    `offset` is the position of the line in the input, in bytes.
    """
    return "batch_req_" + blake2b(b"%b/%d" % (batch_id.encode(), offset), digest_size=16).hexdigest()


class RequestIds:
    """A generator of request ids for many lines of one batch. It is faster than `request_id`."""

    def __init__(self, batch_id: str) -> None:
        self._begun = blake2b(b"%b/" % batch_id.encode(), digest_size=16)

    def of(self, offset: int) -> str:
        digest = self._begun.copy()
        digest.update(b"%d" % offset)
        return "batch_req_" + digest.hexdigest()


def tenant_hash(tenant: str) -> str:
    """Return the hash of a tenant's name. Keys of stored objects contain it instead of the name."""
    return _digest(tenant, 8)


def safe_name(model: str) -> str:
    """Return a name for a model that is unique, and safe in queue names, object keys and workflow ids.

    `org/model-A:1` becomes `org_model_A_1-` and 16 hex digits of a hash. If the name of the model has at most
    100 characters, all of them letters, digits or underscores, it stays unchanged.
    """
    safe = _UNSAFE.sub("_", model[:_SAFE_CHARACTERS])
    return safe if safe == model else f"{safe}-{_digest(model, 8)}"


def is_batch_id(text: str) -> bool:
    return _BATCH_ID.fullmatch(text) is not None


def is_file_id(text: str) -> bool:
    return _FILE_ID.fullmatch(text) is not None


def is_upload_id(text: str) -> bool:
    return _UPLOAD_ID.fullmatch(text) is not None


def is_webhook_id(text: str) -> bool:
    return _WEBHOOK_ID.fullmatch(text) is not None


def is_schedule_id(text: str) -> bool:
    return _SCHEDULE_ID.fullmatch(text) is not None


def is_delivery_id(text: str) -> bool:
    return _DELIVERY_ID.fullmatch(text) is not None


def is_call_id(text: str, prefix: str) -> bool:
    return text.startswith(prefix) and _CALL_ID.fullmatch(text) is not None


def is_audit_entry_id(text: str) -> bool:
    return _AUDIT_ENTRY_ID.fullmatch(text) is not None


def audit_entry_position(entry_id: str) -> int:
    """Return the position in the audit log that an entry's id contains. The first entry has position 1."""
    return int(entry_id[4:20], 16)


def audit_entry_prefix(position: int) -> str:
    """Return the beginning of the id of the audit log entry at `position`. The first position is 1.

    The rest of the id is random.
    """
    return f"act_{position:016x}"


def is_tenant(text: str) -> bool:
    return _TENANT.fullmatch(text) is not None


def is_model_name(text: str) -> bool:
    """Return True if the text is a valid name of a model: 1 to 256 printable characters without U+FFFD.

    Characters that PostgreSQL cannot store are replaced by U+FFFD. Because names must not contain U+FFFD, two
    different names never become equal.
    """
    return 0 < len(text) <= MAX_MODEL_NAME_CHARACTERS and text.isprintable() and _REPLACEMENT not in text


def _digest(text: str, size: int) -> str:
    return blake2b(text.encode(), digest_size=size).hexdigest()
