"""The application whose `/openapi.json` says only what its routes answer."""

from collections.abc import Mapping

from fastapi import FastAPI
from pydantic import TypeAdapter

_OBJECT = TypeAdapter(dict[str, object])
_NEVER = {"responses": {"422"}, "schemas": {"HTTPValidationError", "ValidationError"}}


class DescribedApp(FastAPI):
    """FastAPI adds a 422 to every route with parameters; here each is refused with 400."""

    def openapi(self) -> dict[str, object]:
        if self.openapi_schema is None:
            self.openapi_schema = _without(super().openapi(), set())
        return self.openapi_schema


def _without(node: Mapping[str, object], never: set[str]) -> dict[str, object]:
    """The description without the members that stand in `never`, and in _NEVER further down."""
    return {
        name: _without(_OBJECT.validate_python(value), _NEVER.get(name, set()))
        if isinstance(value, dict)
        else value
        for name, value in node.items()
        if name not in never
    }
