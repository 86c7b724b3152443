"""The page `/docs`, which shows the OpenAPI description. Visitors need not sign in."""

from pydantic import BaseModel, JsonValue
from starlette.responses import Response

from batchwright.api.ui.visit import Visit


class _Description(BaseModel):
    info: dict[str, str]
    paths: dict[str, dict[str, dict[str, JsonValue]]]
    components: dict[str, JsonValue]


async def docs_page(visit: Visit) -> Response:
    api = await visit.api.get("/openapi.json", _Description)
    operations = [(path, *each) for path, methods in api.paths.items() for each in methods.items()]
    return visit.page("docs.html", title="API", api=api, operations=operations)
