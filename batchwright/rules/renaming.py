"""Another model's name in a body of JSON; every other byte stays as it was (R24)."""

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
    spans = _model_spans(body)
    if spans is None:
        return body
    if not spans:
        return _put_in_front(body, name)
    pieces: list[bytes] = []
    at = 0
    for start, end in spans:
        pieces += [body[at:start], name]
        at = end
    return b"".join([*pieces, body[at:]])


def with_model_at_least(body: bytes, model: str) -> bytes:
    """`body` as it is where it names a model at its top; else with `model` put in front."""
    return body if _model_spans(body) else with_model(body, model)


def _model_spans(body: bytes) -> list[tuple[int, int]] | None:
    """Where the strings and nulls stand that are values of the key `model`; None where there is no object."""
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
            if _is_model(text):
                spans.append(value.span(1))
            at = value.end()
    return spans


def _is_model(key: bytes) -> bool:
    """However it is spelt: `\\u006d` is an m to those who read it."""
    if key == _MODEL or b"\\" not in key:
        return key == _MODEL
    try:
        return json.loads(key, strict=False) == "model"
    except ValueError:
        return False


def _put_in_front(body: bytes, name: bytes) -> bytes:
    start = body.index(b"{") + 1
    rest = body[start:]
    comma = b"" if rest.lstrip().startswith(b"}") else b", "
    return body[:start] + b'"model": ' + name + comma + rest
