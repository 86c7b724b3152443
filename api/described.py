"""The application whose `/openapi.json` says only what its routes answer."""

from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from pydantic import TypeAdapter

from api.described_page import page_of
from api.objects import ErrorObject

_OBJECT = TypeAdapter(dict[str, object])
_NEVER = {"responses": {"422"}, "schemas": {"HTTPValidationError", "ValidationError"}}


class DescribedApp(FastAPI):
    """FastAPI adds a 422 to every route with parameters; here each is refused with 400.

    Its own page of the description is built of scripts that a server of others sends.
    """

    _page: Response | None = None

    def openapi(self) -> dict[str, object]:
        if self.openapi_schema is None:
            self.openapi_schema = _with_errors(_without(super().openapi(), set()))
        return self.openapi_schema

    async def page(self, _: Request) -> Response:
        """The same for people."""
        if self._page is None:
            self._page = page_of(self.openapi())
        return self._page


def _with_errors(description: dict[str, object]) -> dict[str, object]:
    """The description with the shape that `api/responses.py` names."""
    error = ErrorObject.model_json_schema(ref_template="#/components/schemas/{model}")
    parts = _OBJECT.validate_python(error.pop("$defs"))
    components = _OBJECT.validate_python(description["components"])
    schemas = _OBJECT.validate_python(components["schemas"])
    shapes = dict(sorted({**schemas, **parts, "ErrorObject": error}.items()))
    return {**description, "components": {**components, "schemas": shapes}}


def _without(node: Mapping[str, object], never: set[str]) -> dict[str, object]:
    """The description without the members that stand in `never`, and in _NEVER further down."""
    return {
        name: _without(_OBJECT.validate_python(value), _NEVER.get(name, set()))
        if isinstance(value, dict)
        else value
        for name, value in node.items()
        if name not in never
    }
