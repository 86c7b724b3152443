"""Another model's name, or another string, in a body of JSON; every other byte stays as it was (R24)."""

import json
import re

# A string, or what changes the depth.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_NAME_AFTER_COLON = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*"|null)', re.DOTALL)
_MODEL = b'"model"'


def with_model(body: bytes, model: str) -> bytes:
    """`body`, an object, with `model` as its model: in place of each name at its top, or else put in front.

    What is no object stays as it is.
    """
    name = json.dumps(model).encode()
    spans = _spans(body, _MODEL)
    if spans is None:
        return body
    return _with_spans(body, spans, name) if spans else _put_in_front(body, name)


def with_model_at_least(body: bytes, model: str) -> bytes:
    """`body` as it is where it names a model at its top; else with `model` put in front."""
    return body if _spans(body, _MODEL) else with_model(body, model)


def with_last(body: bytes, name: str, value: str) -> bytes:
    """`body`, an object, with a string of that name at its end, and in place of each before it.

    Of a name that comes twice, readers take the last. What is no object stays as it is.
    """
    text, key = json.dumps(value).encode(), json.dumps(name).encode()
    spans = _spans(body, key)
    if spans is None or b"}" not in body:
        return body
    body = _with_spans(body, spans, text)
    end = body.rindex(b"}")
    comma = b"" if body[:end].rstrip().endswith(b"{") else b", "
    return body[:end] + comma + key + b": " + text + body[end:]


def _with_spans(body: bytes, spans: list[tuple[int, int]], value: bytes) -> bytes:
    pieces: list[bytes] = []
    at = 0
    for start, end in spans:
        pieces += [body[at:start], value]
        at = end
    return b"".join([*pieces, body[at:]])


def _spans(body: bytes, key: bytes) -> list[tuple[int, int]] | None:
    """Where the strings and nulls stand that are values of the key, a JSON string; None: it is no object."""
    if not body.lstrip().startswith(b"{"):
        return None
    spans: list[tuple[int, int]] = []
    depth = 0
    at = 0
    while (token := _TOKEN.search(body, at)) is not None:
        at = token.end()
        text = token[0]
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and (value := _NAME_AFTER_COLON.match(body, at)) is not None:
            if _is_key(text, key):
                spans.append(value.span(1))
            at = value.end()
    return spans


def _is_key(text: bytes, key: bytes) -> bool:
    """However it is spelt: `\\u006d` is an m to those who read it."""
    if text == key or b"\\" not in text:
        return text == key
    try:
        return json.loads(text, strict=False) == json.loads(key)
    except ValueError:
        return False


def _put_in_front(body: bytes, name: bytes) -> bytes:
    start = body.index(b"{") + 1
    rest = body[start:]
    comma = b"" if rest.lstrip().startswith(b"}") else b", "
    return body[:start] + b'"model": ' + name + comma + rest
