"""Pages that create a batch: upload a file, see its estimate, submit it."""

import re
from collections.abc import Mapping
from secrets import token_hex

from pydantic import BaseModel, ValidationError
from starlette.responses import RedirectResponse, Response

from batchwright.api.errors import ApiError, file_not_found
from batchwright.api.ui.api_client import ApiClient
from batchwright.api.ui.batch_pages import Page
from batchwright.api.ui.rendering import Renderer, link
from batchwright.api.ui.visit import Visit
from batchwright.contracts.objects.openai import BatchObject, EstimateObject, FileObject
from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.ids import is_file_id
from batchwright.settings import Settings

_PREVIEW_BYTES = 64 * 1024


class _FirstLine(BaseModel):
    url: str = ""


class NewBatchPages:
    def __init__(self, renderer: Renderer, settings: Settings) -> None:
        self._renderer = renderer
        self._is_relaxed = settings.profile is Profile.RELAXED
        self._endpoints = [each.value for each in Endpoint if each.is_openais or self._is_relaxed]

    def table(self) -> dict[str, Page]:
        return {"GET /new": self.form, "POST /new": self.create, "POST /files": self.upload}

    async def upload(self, visit: Visit) -> Response:
        """Store an uploaded file, and show its estimate. The token is in the URL, so the form can stream."""
        visit.check_csrf(visit.argument("csrf"))
        request = visit.request
        content_type = request.headers.get("content-type", "")
        file = await visit.api.upload(request.receive, content_type, FileObject)
        return RedirectResponse(link("/new", file=file.id), 303)

    async def form(self, visit: Visit) -> Response:
        """Show the form for a file. With a file, show its estimate, and the form for a batch."""
        file_id = visit.argument("file")
        if not file_id:
            return self._renderer.page(visit, "new_file.html", {"upload": link("/files", csrf=visit.csrf)})
        if not is_file_id(file_id):
            raise file_not_found(file_id)
        file = await visit.api.get(f"/v1/files/{file_id}", FileObject)
        endpoint = visit.argument("endpoint") or await _endpoint_of(visit.api, file_id)
        if endpoint not in self._endpoints:
            endpoint = Endpoint.CHAT_COMPLETIONS
        return await self._estimated(visit, file, endpoint)

    async def _estimated(self, visit: Visit, file: FileObject, endpoint: str) -> Response:
        body = {"input_file_id": file.id, "endpoint": endpoint}
        estimate, problem = None, ""
        try:
            estimate = await visit.api.post("/v1/batches/x/estimate", EstimateObject, body)
        except ApiError as error:
            problem = error.message
        context = {"file": file, "endpoint": endpoint, "endpoints": self._endpoints}
        context |= {"estimate": estimate, "problem": problem, "once": token_hex(16)}
        return self._renderer.page(visit, "new_batch.html", {"is_relaxed": self._is_relaxed, **context})

    async def create(self, visit: Visit) -> Response:
        form = await visit.form()
        body: dict[str, object] = {
            "input_file_id": form.get("file", ""),
            "endpoint": form.get("endpoint", ""),
            "completion_window": form.get("window") or "24h",
        }
        if metadata := _metadata(form.get("metadata", "")):
            body["metadata"] = metadata
        if extension := _extension(form):
            body["x_batchwright"] = extension
        once = form.get("once", "")
        headers = {"idempotency-key": once} if once.isascii() and once.isalnum() else {}
        batch = await visit.api.post("/v1/batches", BatchObject, body, headers)
        return RedirectResponse(link(f"/batches/{batch.id}"), 303)


async def _endpoint_of(api: ApiClient, file_id: str) -> str:
    """Return the `url` in the first line of a file; empty if the line has no `url`."""
    headers = {"range": f"bytes=0-{_PREVIEW_BYTES - 1}"}
    async with api.open(f"/v1/files/{file_id}/content", headers=headers) as response:
        first, _, _ = (await response.body()).partition(b"\n")
    try:
        return _FirstLine.model_validate_json(first).url
    except ValidationError:  # a longer line, or none of JSON: the estimate tells
        return ""


def _metadata(text: str) -> dict[str, str]:
    """Return the pairs of a text with one `key=value` on each line.

    Raises:
        ApiError: a line has no `=`.
    """
    pairs = dict[str, str]()
    for line in filter(None, map(str.strip, text.splitlines())):
        key, equals, value = line.partition("=")
        if not equals:
            raise ApiError(400, f"The metadata line {line!r} is not of the form key=value.", param="metadata")
        pairs[key.strip()] = value.strip()
    return pairs


def _extension(form: Mapping[str, str]) -> dict[str, object]:
    extension: dict[str, object] = {}
    if re.fullmatch("[0-9]{1,9}", form.get("priority", "")):
        extension["priority"] = int(form["priority"])
    if form.get("max_cost"):
        extension["max_cost"] = form["max_cost"]
    if "deduplicate" in form:
        extension["deduplicate"] = True
    return extension
