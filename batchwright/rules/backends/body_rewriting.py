"""Set the model's name, the priority or another field of a JSON body. All other bytes stay unchanged."""

import json

from batchwright.rules.json_text import object_members

# Finding the fields of a body takes up to 1 s per MB. Larger bodies are rewritten in a thread.
INLINE_REWRITE_BYTES = 64 * 1024
_MODEL = b'"model"'
_PRIORITY = b'"priority"'
# How escaped letters of a key begin: `\u0070` is a p.
_ESCAPED_LETTERS = (b"\\u006", b"\\u007")


def with_model(body: bytes, model: str) -> bytes:
    """Return the JSON body with `model` as the value of its field `model`. A missing field is added.

    A body that is not an object is returned unchanged.
    """
    name = json.dumps(model).encode()
    spans = _value_spans(body, _MODEL)
    if spans is None:
        return body
    return _replace_spans(body, spans, name) if spans else _prepend(body, _MODEL, name)


def with_default_model(body: bytes, model: str) -> bytes:
    """Return the JSON body with `model` as the value of its field `model`, if this field is missing or null.

    The body is returned unchanged if it already names a model, or if it is not an object.
    """
    is_named = any(body[start:end] != b"null" for start, end in _value_spans(body, _MODEL) or ())
    return body if is_named else with_model(body, model)


def with_priority(body: bytes, priority: int) -> bytes:
    """Return the JSON body with `priority` as the value of its field `priority`. A missing field is added.

    A body that is not an object is returned unchanged.
    """
    value = b"%d" % priority
    if _PRIORITY in body or any(escaped in body for escaped in _ESCAPED_LETTERS):
        spans = _value_spans(body, _PRIORITY, of_any_type=True)
        if spans:
            return _replace_spans(body, spans, value)
    return _prepend(body, _PRIORITY, value) if body.lstrip().startswith(b"{") else body


def with_string(body: bytes, name: str, value: str) -> bytes:
    """Return the JSON body with the field `name` and the string `value` added at its end.

    If the body already has fields with this name, they are not removed. If such a field contains a string or
    null, its value is replaced by `value`, too. A body that is not an object is returned unchanged.
    """
    text, key = json.dumps(value).encode(), json.dumps(name).encode()
    spans = _value_spans(body, key)
    if spans is None or b"}" not in body:
        return body
    body = _replace_spans(body, spans, text)
    end = body.rindex(b"}")
    comma = b"" if body[:end].rstrip().endswith(b"{") else b", "
    return body[:end] + comma + key + b": " + text + body[end:]


def _replace_spans(body: bytes, spans: list[tuple[int, int]], value: bytes) -> bytes:
    pieces: list[bytes] = []
    at = 0
    for start, end in spans:
        pieces += [body[at:start], value]
        at = end
    return b"".join([*pieces, body[at:]])


def _value_spans(body: bytes, key: bytes, *, of_any_type: bool = False) -> list[tuple[int, int]] | None:
    """Return the position (start, end) of each value that a key has in a JSON object.

    A key may occur several times. Return None if the body is not an object.

    Args:
        body: the JSON text.
        key: the key as a JSON string, with quotes.
        of_any_type: True to include values of all types; False to include only strings and null.
    """
    if not body.lstrip().startswith(b"{"):
        return None
    return [
        (start, end)
        for name, start, end in object_members(body)
        if _is_key(name, key)
        and (of_any_type or body[start : start + 1] == b'"' or body[start:end] == b"null")
    ]


def _is_key(text: bytes, key: bytes) -> bool:
    """Return True if both texts are the same JSON string. Escapes may differ: `\\u006d` is an m."""
    if text == key or b"\\" not in text:
        return text == key
    try:
        return json.loads(text, strict=False) == json.loads(key)
    except ValueError:
        return False


def _prepend(body: bytes, key: bytes, value: bytes) -> bytes:
    start = body.index(b"{") + 1
    rest = body[start:]
    comma = b"" if rest.lstrip().startswith(b"}") else b", "
    return body[:start] + key + b": " + value + comma + rest
