"""Writes JSON as a model would return it: an object, or a value that conforms to a JSON schema."""

from collections.abc import Mapping
from math import ceil, floor
from typing import Any, cast

import msgspec

Schema = Mapping[str, Any]

# Deeper or later values have only required parts, so that recursive schemas come to an end.
_DEEPEST, _MANY = 6, 1000
_MAX_VALUES = 100_000  # values in one response
_FORMATS = {
    "date-time": "2026-01-01T00:00:00Z",
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "duration": "PT1S",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


class UnusableSchema(Exception):
    """A JSON schema is invalid, or no finite value conforms to it."""


def write_json(schema: Schema | None, text: str) -> str:
    """Return a simple JSON value that conforms to `schema`. If `schema` is None, return a JSON object.

    Each string is `text` if the schema allows it. Keywords such as `pattern`, `not` and `if` are ignored.

    Raises:
        UnusableSchema: the schema is invalid, or no finite value conforms to it.
    """
    if schema is None:
        value: object = {"answer": text}
    else:
        try:
            value = _SchemaWriter(schema, text).value(schema, 0)
        except RecursionError:
            raise UnusableSchema("The references of the schema are circular.") from None
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise UnusableSchema(f"This is not a JSON schema: {error}") from None
    return msgspec.json.encode(value).decode()


class _SchemaWriter:
    def __init__(self, root: Schema, text: str) -> None:
        self._root, self._text = root, text
        self._written = 0

    def value(self, schema: object, depth: int) -> Any:
        """Return a value that conforms to `schema`.

        `depth` is the nesting depth of `schema`; 0 for the whole schema.
        """
        self._written += 1
        if depth > 8 * _DEEPEST or self._written > _MAX_VALUES:
            raise UnusableSchema("The schema requires an endless value.")
        resolved = self._resolved(schema)
        if "const" in resolved:
            return resolved["const"]
        if resolved.get("enum"):
            return resolved["enum"][0]
        choices = resolved.get("anyOf") or resolved.get("oneOf")
        if choices:
            rest = {key: value for key, value in resolved.items() if key not in ("anyOf", "oneOf")}
            chosen = self._simplest(choices) if self._is_short(depth) else choices[0]
            return self.value(_merged(rest, self._resolved(chosen)), depth + 1)
        return self._of_type(_type_of(resolved), resolved, depth)

    def _is_short(self, depth: int) -> bool:
        return depth > _DEEPEST or self._written > _MANY

    def _of_type(self, kind: str, schema: Schema, depth: int) -> Any:
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer" | "number":
                return _number(schema, whole=kind == "integer")
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return self._string(schema)

    def _resolved(self, schema: object) -> Schema:
        """Return an equivalent schema without `$ref` and `allOf`.

        A reference is replaced by its target. The parts of `allOf` are merged into one schema.
        """
        merged = _schema(schema) or {}
        for _ in range(100):  # stops circular references
            if "$ref" in merged:
                rest = {key: value for key, value in merged.items() if key != "$ref"}
                merged = _merged(self._found(str(merged["$ref"])), rest)
            elif merged.get("allOf"):
                parts, rest = merged["allOf"], {k: v for k, v in merged.items() if k != "allOf"}
                for part in parts:
                    rest = _merged(rest, self._resolved(part))
                merged = rest
            else:
                return merged
        raise UnusableSchema("The references of the schema are circular.")

    def _found(self, reference: str) -> Schema:
        found = self._root if reference.startswith("#") else None
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = _schema(found.get(name)) if found else None
        if found is None:
            raise UnusableSchema(f"The reference {reference!r} has no target.")
        return found

    def _simplest(self, choices: list[object]) -> object:
        """Return the first of the schemas `choices` that describes neither an object nor an array.

        If there is no such schema, return the first schema.
        """
        plain = [choice for choice in choices if _type_of(self._resolved(choice)) not in ("object", "array")]
        return (plain or choices)[0]

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties: Schema = schema.get("properties") or {}
        required: list[str] = schema.get("required") or []
        wanted = required if self._is_short(depth) else [*properties, *required]
        return {name: self.value(properties.get(name, {}), depth + 1) for name in dict.fromkeys(wanted)}

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        first: list[object] = schema.get("prefixItems") or []
        least = int(schema.get("minItems", 0 if self._is_short(depth) else 1))
        count = min(max(least, len(first)), int(schema.get("maxItems", _MAX_VALUES)), _MAX_VALUES)
        items = [*first, *[schema.get("items", {})] * count][:count]
        return [self.value(item, depth + 1) for item in items]

    def _string(self, schema: Schema) -> str:
        text = _FORMATS.get(str(schema.get("format")), self._text)
        least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", len(text) + 1_000_000))
        return text.ljust(min(least, 1_000_000), ".")[:most]


def _schema(value: object) -> Schema | None:
    return cast(Schema, value) if isinstance(value, Mapping) else None


def _type_of(schema: Schema) -> str:
    kind = schema.get("type")
    if isinstance(kind, list) and kind:
        return str(cast(list[object], kind)[0])
    if isinstance(kind, str):
        return kind
    return "object" if "properties" in schema else "array" if "items" in schema else "string"


def _merged(one: Schema, other: Schema) -> dict[str, Any]:
    merged = {**one, **other}
    if "properties" in one and "properties" in other:
        merged["properties"] = {**one["properties"], **other["properties"]}
    if "required" in one and "required" in other:
        merged["required"] = [*one["required"], *other["required"]]
    return merged


def _number(schema: Schema, *, whole: bool) -> int | float:
    """Return a number within the bounds of `schema`.

    - If there are multiples of `multipleOf` within the bounds, return the multiple nearest to 1. If `whole`
      is True, the fraction of this multiple is removed.
    - Otherwise, return the middle of the bounds, even if `whole` is True and the middle is not an integer.

    Without `multipleOf`, multiples of 1 are used if `whole` is True, and multiples of 0.5 if not.
    """
    step = float(schema.get("multipleOf") or (1 if whole else 0.5))
    least = float(schema.get("minimum", schema.get("exclusiveMinimum", -1e15)))
    most = float(schema.get("maximum", schema.get("exclusiveMaximum", 1e15)))
    first, last = ceil(least / step), floor(most / step)
    first += "exclusiveMinimum" in schema and first * step == schema["exclusiveMinimum"]
    last -= "exclusiveMaximum" in schema and last * step == schema["exclusiveMaximum"]
    count = min(max(round(1 / step), first), last)
    if first > last:  # no multiple of the step is in bounds, so return the middle
        return (least + most) / 2
    value = count * step
    return int(value) if whole or value.is_integer() else value
