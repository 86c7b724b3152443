"""What `/openapi.json` says of parameters. Routes read them as text, to refuse them in OpenAI's words."""

from pydantic import WithJsonSchema


def limit_schema(default: int, most: int) -> WithJsonSchema:
    """Of a list's `limit`."""
    return WithJsonSchema({"type": "integer", "minimum": 1, "maximum": most, "default": default})


def enum_schema(*values: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": list(values)})


def pattern_schema(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern})
