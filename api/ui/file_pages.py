"""Pages of files: the list, downloads, and deletion."""

from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from batchwright.api.ui.batch_pages import Page
from batchwright.api.ui.rendering import Renderer, link
from batchwright.api.ui.visit import Visit
from batchwright.contracts.objects.openai import FileObject, FilePage

_PER_PAGE = 50
_SENT_ON = ("range", "if-range", "if-none-match")


class FilePages:
    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def table(self) -> dict[str, Page]:
        one = "/files/{file_id}"
        return {
            "GET /files": self.list,
            f"GET {one}/content": self.content,
            f"POST {one}/delete": self.delete,
        }

    async def list(self, visit: Visit) -> Response:
        purpose = visit.argument("purpose")
        query = {
            "limit": str(_PER_PAGE),
            "order": "desc",
            "after": visit.argument("after"),
            "purpose": purpose,
        }
        page = await visit.api.get("/v1/files", FilePage, query)
        older = link("/files", purpose=purpose, after=page.last_id) if page.has_more else None
        context = {"page": page, "older": older, "purpose": purpose}
        return self._renderer.page(visit, "files.html", context)

    async def content(self, visit: Visit) -> Response:
        file = await visit.api.get(f"/v1/files/{visit.path('file_id')}", FileObject)
        return _Download(visit, f"/v1/files/{file.id}/content")

    async def delete(self, visit: Visit) -> Response:
        await visit.form()
        await visit.api.act("DELETE", f"/v1/files/{visit.path('file_id')}")
        return RedirectResponse(link("/files"), 303)


class _Download(Response):
    """The API's own response to a download, with byte ranges and conditions."""

    def __init__(self, visit: Visit, path: str) -> None:
        super().__init__()
        self._visit, self._path = visit, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = self._visit.request.headers
        headers = {name: sent[name] for name in _SENT_ON if name in sent}
        api = self._visit.api
        await api.forward(api.scope("GET", self._path, headers=headers), receive, send)
