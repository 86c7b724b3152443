"""Builds the response objects that `/v1/responses` returns, in the format of OpenAI's Responses API.

Each object is built from a stored call: a single request that a client sends without a batch.
"""

from collections.abc import Mapping

import msgspec
import orjson

from batchwright.contracts.calls import Call, CallStatus
from batchwright.contracts.terms import Profile
from batchwright.rules.calls.call_results import error_of, success_of

# Fields that OpenAI's responses always have, and what they are if neither request nor backend says more.
_DEFAULTS: Mapping[str, object] = {
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "usage": None,
}
MAX_ECHOED_BYTES = 32 * 1024
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(orjson.dumps(value))


_RAW_DEFAULTS = {name: _raw(value) for name, value in _DEFAULTS.items()}


def echoed_fields(fields: Mapping[str, msgspec.Raw]) -> bytes:
    """Return, as a JSON object, the fields of a request that are shown until the backend has answered.

    The response object then repeats these fields. All values together have at most `MAX_ECHOED_BYTES` bytes.
    If the values are larger, the largest fields are left out. The response object then shows the default
    values of the missing fields.
    """
    kept, size = dict[str, msgspec.Raw](), 0
    for name in sorted(_DEFAULTS.keys() & fields.keys(), key=lambda name: (len(bytes(fields[name])), name)):
        size += len(bytes(fields[name]))
        if size > MAX_ECHOED_BYTES:
            break
        kept[name] = fields[name]
    return msgspec.json.encode(kept)


def response_body(call: Call, profile: Profile) -> bytes:
    """Return the response object of a call (a single request without a batch) as JSON.

    If the backend has answered, the object has the fields of the answer. Otherwise it repeats the stored
    fields of the request.
    """
    fields = _answered_fields(call)
    if fields is None:
        request = _FIELDS.decode(call.echoed or b"{}")
        fields = {name: request.get(name, default) for name, default in _RAW_DEFAULTS.items()}
        fields |= {"output": _raw([]), "model": _raw(call.model)}
    own: dict[str, object] = {
        "id": call.id,
        "object": "response",
        "created_at": int(call.created_at.timestamp()),
        "status": call.status.value,
        "background": call.notifies,
    }
    if call.status is CallStatus.FAILED:
        error = error_of(call)
        own["error"] = {"code": error.code, "message": error.message}
    elif "error" not in fields:
        own["error"] = None
    if profile is Profile.RELAXED:
        own["x_batchwright"] = {"batch_id": call.batch_id}
    return msgspec.json.encode(fields | {name: _raw(value) for name, value in own.items()})


def _answered_fields(call: Call) -> dict[str, msgspec.Raw] | None:
    """Return the fields of the backend's successful answer to a call; None if there is no such answer."""
    response = success_of(call)
    if response is None:
        return None
    try:
        return _FIELDS.decode(response.body)
    except msgspec.MsgspecError:  # not an object
        return None
