"""`/docs`: the OpenAPI description as a page that brings all it needs, and runs no script."""

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from html import escape

from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field, JsonValue

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }
details { border-top: 1px solid #ddd; padding: .4rem 0 }
summary { cursor: pointer }
b { display: inline-block; min-width: 4.5rem }
h2 { margin-top: 2.5rem }
table { border-collapse: collapse; width: 100% }
td { border-top: 1px solid #eee; padding: .3rem .6rem .3rem 0; vertical-align: top }
code, pre { font: 14px/1.4 ui-monospace, monospace }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818 } pre { background: #242424 } a { color: #8ab4f8 }
}
"""
_HASH = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; frame-ancestors 'none'"
_SHAPE = re.compile(r"&quot;#/components/schemas/(\w+)&quot;")


class _Parameter(BaseModel):
    name: str
    place: str = Field(alias="in")
    required: bool = False
    description: str = ""
    schema_: JsonValue = Field(None, alias="schema")


class _Answer(BaseModel):
    description: str = ""
    content: dict[str, JsonValue] = {}


class _Body(BaseModel):
    content: dict[str, JsonValue] = {}


class _Operation(BaseModel):
    tags: list[str] = []
    description: str = ""
    parameters: list[_Parameter] = []
    body: _Body | None = Field(None, alias="requestBody")
    responses: dict[str, _Answer] = {}


class _Info(BaseModel):
    title: str
    version: str
    description: str = ""


class _Shapes(BaseModel):
    schemas: dict[str, JsonValue] = {}


class _Description(BaseModel):
    info: _Info
    paths: dict[str, dict[str, _Operation]]
    components: _Shapes


def page_of(description: dict[str, object]) -> HTMLResponse:
    """Of what `/openapi.json` says."""
    told = _Description.model_validate(description)
    return HTMLResponse("\n".join(_lines(told)), headers={"content-security-policy": _POLICY})


def _lines(told: _Description) -> Iterator[str]:
    title = escape(f"{told.info.title} {told.info.version}")
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    yield f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
    machines = 'For machines: <a href="openapi.json">openapi.json</a>.'
    yield f"<h1>{title}</h1><p>{_text(told.info.description)} {machines}"
    for tag in dict.fromkeys(_tag(each) for methods in told.paths.values() for each in methods.values()):
        yield f"<h2>{escape(tag)}</h2>"
        for path, methods in told.paths.items():
            for method, operation in methods.items():
                if _tag(operation) == tag:
                    yield from _route(method.upper(), path, operation)
    yield "<h2>Shapes</h2>"
    for name, schema in told.components.schemas.items():
        shown = escape(name)
        yield f'<details id="{shown}"><summary><code>{shown}</code></summary>{_json(schema)}</details>'
    yield "</html>"


def _route(method: str, path: str, operation: _Operation) -> Iterator[str]:
    head = f"<b>{method}</b><code>{escape(path)}</code>"
    yield f"<details><summary>{head} {_text(operation.description)}</summary>"
    if operation.parameters:
        yield "<h4>Parameters</h4><table>"
        for one in operation.parameters:
            what = f"{one.place}, required" if one.required else one.place
            yield _row(f"<code>{escape(one.name)}</code>", what, _text(one.description), _inline(one.schema_))
        yield "</table>"
    for kind, content in (operation.body.content if operation.body else {}).items():
        yield f"<h4>Body, {escape(kind)}</h4>{_json(content)}"
    yield "<h4>Answers</h4><table>"
    for status, answer in operation.responses.items():
        shapes = " ".join(_inline(content) for content in answer.content.values())
        yield _row(f"<code>{escape(status)}</code>", _text(answer.description), shapes)
    yield "</table></details>"


def _tag(operation: _Operation) -> str:
    return operation.tags[0] if operation.tags else ""


def _row(*cells: str) -> str:
    return f"<tr>{''.join(f'<td>{cell}' for cell in cells)}"


def _text(text: str) -> str:
    """With what stands in backquotes as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _inline(value: JsonValue) -> str:
    return f"<code>{_linked(json.dumps(value))}</code>"


def _json(value: JsonValue) -> str:
    return f"<pre>{_linked(json.dumps(value, indent=2))}</pre>"


def _linked(text: str) -> str:
    """Each name of a shape leads to it."""
    return _SHAPE.sub(r'<a href="#\1">\1</a>', escape(text))
