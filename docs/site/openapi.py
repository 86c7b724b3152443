"""Renders the API's OpenAPI description as pages: every route, and every schema."""

import json
from collections.abc import Iterator

from pydantic import BaseModel, Field, JsonValue

_PAGE = "reference/http-routes.md"
_SCHEMAS = "reference/http-schemas.md"
_FILE = "reference/openapi.json"
_METHODS = ("get", "post", "put", "patch", "delete")


class _Schema(BaseModel):
    reference: str = Field("", alias="$ref")
    type: str = ""
    format: str = ""
    title: str = ""
    description: str = ""
    enum: list[JsonValue] = []
    const: JsonValue = None
    minimum: float | None = None
    maximum: float | None = None
    default: JsonValue = None
    any_of: list["_Schema"] = Field([], alias="anyOf")
    one_of: list["_Schema"] = Field([], alias="oneOf")
    all_of: list["_Schema"] = Field([], alias="allOf")
    items: "_Schema | bool | None" = None
    additional: "_Schema | bool | None" = Field(None, alias="additionalProperties")
    properties: dict[str, "_Schema"] = {}
    required: list[str] = []


class _Parameter(BaseModel):
    name: str
    place: str = Field(alias="in")
    required: bool = False
    description: str = ""
    schema_: _Schema = Field(_Schema(), alias="schema")  # pyright: ignore[reportCallIssue]


class _Media(BaseModel):
    schema_: _Schema = Field(_Schema(), alias="schema")  # pyright: ignore[reportCallIssue]


class _Body(BaseModel):
    description: str = ""
    content: dict[str, _Media] = {}


class _Operation(BaseModel):
    tags: list[str] = ["Other"]
    summary: str = ""
    description: str = ""
    parameters: list[_Parameter] = []
    body: _Body | None = Field(None, alias="requestBody")
    responses: dict[str, _Body] = {}


class _Components(BaseModel):
    schemas: dict[str, _Schema] = {}


class _Description(BaseModel):
    paths: dict[str, dict[str, _Operation]]
    components: _Components


def api_pages(description: dict[str, object]) -> dict[str, bytes]:
    """Return the pages of an OpenAPI description, and the description itself as a file."""
    api = _Description.model_validate(description)
    return {
        _PAGE: "\n".join(_routes(api)).encode(),
        _SCHEMAS: "\n".join(_schemas(api)).encode(),
        _FILE: json.dumps(description, indent=1).encode(),
    }


def _routes(api: _Description) -> Iterator[str]:
    yield "# HTTP routes\n"
    yield (
        "Every route with its parameters, body and responses, made from the API's OpenAPI description "
        "([openapi.json](openapi.json)). The [guide to the API](api.md) explains them.\n"
    )
    operations = [
        (method.upper(), path, operation)
        for path, methods in api.paths.items()
        for method, operation in methods.items()
        if method in _METHODS
    ]
    for tag in dict.fromkeys(operation.tags[0] for _, _, operation in operations):
        yield f"## {tag.capitalize()}\n"
        for method, path, operation in operations:
            if operation.tags[0] == tag:
                yield from _operation(method, path, operation)


def _operation(method: str, path: str, operation: _Operation) -> Iterator[str]:
    yield f"### {method} {path.replace('_', chr(92) + '_')}\n"
    if operation.description:
        yield f"{operation.description}\n"
    if operation.parameters:
        yield "| parameter | in | type | meaning |\n|---|---|---|---|"
        for each in operation.parameters:
            where = f"{each.place}, required" if each.required else each.place
            yield _row(f"`{each.name}`", where, _type(each.schema_), each.description)
        yield ""
    if operation.body:
        for media, content in operation.body.content.items():
            yield f"Body: `{media}`, {_type(content.schema_) or 'any'}\n"
    yield "| status | body | meaning |\n|---|---|---|"
    for status, response in operation.responses.items():
        bodies = (f"{_type(content.schema_) or f'`{media}`'}" for media, content in response.content.items())
        yield _row(status, ", ".join(bodies), response.description)
    yield ""


def _schemas(api: _Description) -> Iterator[str]:
    yield "# HTTP schemas\n"
    yield "The objects that the [routes](http-routes.md) receive and return.\n"
    for name, schema in api.components.schemas.items():
        yield f"## {name}\n"
        if schema.description:
            yield f"{schema.description}\n"
        if not schema.properties:
            yield f"{_type(schema) or 'Any JSON'}\n"
            continue
        yield from _fields(schema)
        yield ""


def _fields(schema: _Schema) -> Iterator[str]:
    """Yield the rows of a Markdown table with the fields of an object.

    The column `meaning` is left out if no field has a description.
    """
    has_meaning = any(inner.description for inner in schema.properties.values())
    yield "| field | type | meaning |\n|---|---|---|" if has_meaning else "| field | type |\n|---|---|"
    for field, inner in schema.properties.items():
        mark = ", required" if field in schema.required else ""
        meaning = [inner.description] if has_meaning else []
        yield _row(f"`{field}`", _type(inner) + mark, *meaning)


def _type(schema: _Schema) -> str:
    """Return the type of a schema as Markdown. A type with a name becomes a link."""
    if schema.reference:
        name = schema.reference.rpartition("/")[2]
        return f"[{name}](http-schemas.md#{name.lower()})"
    if several := [*schema.any_of, *schema.one_of, *schema.all_of]:
        return " or ".join(dict.fromkeys(_type(each) or "any" for each in several))
    if schema.enum:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.enum)
    if schema.const is not None:
        return f"`{json.dumps(schema.const)}`"
    if isinstance(schema.items, _Schema):
        return f"list of {_type(schema.items) or 'any'}"
    if isinstance(schema.additional, _Schema):
        return f"map to {_type(schema.additional) or 'any'}"
    return schema.type + _bounds(schema)


def _bounds(schema: _Schema) -> str:
    bounds = [
        f"{word} {value:g}"
        for word, value in (("at least", schema.minimum), ("at most", schema.maximum))
        if value is not None
    ]
    default = [f"default `{json.dumps(schema.default)}`"] if schema.default is not None else []
    return "".join(f", {each}" for each in [*bounds, *default])


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"
