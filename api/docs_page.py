"""The page `/docs`: the OpenAPI description as one HTML page without scripts."""

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from html import escape

from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field, JsonValue

# The colours are those of the pages at `/ui`.
_STYLE = """
:root { color-scheme: light dark; --text: #1c2230; --quiet: #566074; --page: #f6f7f9; --card: #fff;
  --line: #dfe3ea; --link: #2450b8 }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e8f0; --quiet: #a0aabd; --page: #12151c; --card: #1a1f29;
    --line: #2f3745; --link: #8fb1ff }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 0 auto; padding: 1rem 1.2rem 3rem;
  color: var(--text); background: var(--page) }
a { color: var(--link) }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px }
h1 { font-size: 1.4rem; margin: .6rem 0 }
h2 { font-size: 1.05rem; margin: 1.6rem 0 .5rem }
details { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .5rem .9rem;
  margin: .4rem 0 }
summary { cursor: pointer; overflow-wrap: anywhere }
b { display: inline-block; min-width: 4.5rem }
table { border-collapse: collapse; width: 100% }
td { border-top: 1px solid var(--line); padding: .3rem .6rem .3rem 0; vertical-align: top }
td:last-child { overflow-wrap: anywhere }
@media (max-width: 46rem) {
  td { display: block; border: 0; padding: .1rem 0 } td:first-child { border-top: 1px solid var(--line) }
}
code, pre { font: 13px/1.4 ui-monospace, monospace }
pre { background: var(--page); border: 1px solid var(--line); border-radius: 6px; padding: .6rem;
  overflow-x: auto }
"""
_HASH = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; frame-ancestors 'none'"
_SCHEMA_REFERENCE = re.compile(r"&quot;#/components/schemas/(\w+)&quot;")


class _DescribedParameter(BaseModel):
    name: str
    place: str = Field(alias="in")
    required: bool = False
    description: str = ""
    schema_: JsonValue = Field(None, alias="schema")


class _DescribedResponse(BaseModel):
    description: str = ""
    content: dict[str, JsonValue] = {}


class _DescribedBody(BaseModel):
    content: dict[str, JsonValue] = {}


class _Operation(BaseModel):
    tags: list[str] = []
    description: str = ""
    parameters: list[_DescribedParameter] = []
    body: _DescribedBody | None = Field(None, alias="requestBody")
    responses: dict[str, _DescribedResponse] = {}


class _DescribedInfo(BaseModel):
    title: str
    version: str
    description: str = ""


class _DescribedSchemas(BaseModel):
    schemas: dict[str, JsonValue] = {}


class _Description(BaseModel):
    info: _DescribedInfo
    paths: dict[str, dict[str, _Operation]]
    components: _DescribedSchemas


def render_page(description: dict[str, object]) -> HTMLResponse:
    """Return the OpenAPI description as an HTML page."""
    api = _Description.model_validate(description)
    return HTMLResponse("\n".join(_lines(api)), headers={"content-security-policy": _POLICY})


def _lines(api: _Description) -> Iterator[str]:
    title = escape(f"{api.info.title} {api.info.version}")
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    yield f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
    machines = 'For machines: <a href="openapi.json">openapi.json</a>.'
    yield f"<h1>{title}</h1><p>{_text(api.info.description)} {machines}"
    for tag in dict.fromkeys(_tag(each) for methods in api.paths.values() for each in methods.values()):
        yield f"<h2>{escape(tag)}</h2>"
        for path, methods in api.paths.items():
            for method, operation in methods.items():
                if _tag(operation) == tag:
                    yield from _operation_lines(method.upper(), path, operation)
    yield "<h2>Schemas</h2>"
    for name, schema in api.components.schemas.items():
        escaped = escape(name)
        yield f'<details id="{escaped}"><summary><code>{escaped}</code></summary>{_json(schema)}</details>'
    yield "</html>"


def _operation_lines(method: str, path: str, operation: _Operation) -> Iterator[str]:
    head = f"<b>{method}</b><code>{escape(path)}</code>"
    yield f"<details><summary>{head} {_text(operation.description)}</summary>"
    if operation.parameters:
        yield "<h4>Parameters</h4><table>"
        for parameter in operation.parameters:
            place = f"{parameter.place}, required" if parameter.required else parameter.place
            yield _row(
                f"<code>{escape(parameter.name)}</code>",
                place,
                _text(parameter.description),
                _inline(parameter.schema_),
            )
        yield "</table>"
    for kind, content in (operation.body.content if operation.body else {}).items():
        yield f"<h4>Body, {escape(kind)}</h4>{_json(content)}"
    yield "<h4>Responses</h4><table>"
    for status, response in operation.responses.items():
        schemas = " ".join(_inline(content) for content in response.content.values())
        yield _row(f"<code>{escape(status)}</code>", _text(response.description), schemas)
    yield "</table></details>"


def _tag(operation: _Operation) -> str:
    return operation.tags[0] if operation.tags else ""


def _row(*cells: str) -> str:
    return f"<tr>{''.join(f'<td>{cell}' for cell in cells)}"


def _text(text: str) -> str:
    """Convert text to HTML. Text in backquotes becomes a `<code>` element."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _inline(value: JsonValue) -> str:
    return f"<code>{_with_links(json.dumps(value))}</code>"


def _json(value: JsonValue) -> str:
    return f'<pre tabindex="0">{_with_links(json.dumps(value, indent=2))}</pre>'


def _with_links(text: str) -> str:
    """Convert JSON text to HTML. Each name of a schema becomes a link to its definition."""
    return _SCHEMA_REFERENCE.sub(r'<a href="#\1">\1</a>', escape(text))
