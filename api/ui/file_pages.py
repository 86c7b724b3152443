"""Pages that upload and download files, and create a batch from a file: see its estimate, submit it."""

import re
from collections.abc import Mapping
from secrets import token_hex

from starlette.responses import RedirectResponse, Response

from batchwright.api.errors import ApiError, file_not_found
from batchwright.api.ui.batch_pages import Page
from batchwright.api.ui.live import LiveFragments
from batchwright.api.ui.rendering import Renderer, link
from batchwright.api.ui.upload_check import FIRST_LINE_BYTES, UploadCheck, endpoint_of
from batchwright.api.ui.visit import Forwarded, Visit
from batchwright.contracts.objects.openai import BatchObject, EstimateObject, FileObject
from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.ids import is_file_id
from batchwright.settings import Settings

# Uploads that are checked at once, in this process and of one visitor. Others are checked when they are
# complete.
_MAX_CHECKS, _MAX_CHECKS_PER_VISITOR = 8, 2
_CHECK_SECONDS = 1.0
_SIZE = re.compile("[0-9]{1,15}")


class FilePages:
    def __init__(self, renderer: Renderer, settings: Settings, live: LiveFragments) -> None:
        self._renderer, self._settings, self._live = renderer, settings, live
        self._is_relaxed = settings.profile is Profile.RELAXED
        self._endpoints = [each.value for each in Endpoint if each.is_openais or self._is_relaxed]
        self._uploads = dict[tuple[str, str], UploadCheck]()  # by visitor, and the id of the upload
        self._checking = list[str]()  # the visitor of each upload that is being checked

    def table(self) -> dict[str, Page]:
        return {
            "GET /new": self.form,
            "POST /new": self.create,
            "POST /files": self.upload,
            "GET /files/events": self.upload_events,
            "GET /files/{file_id}/content": self.content,
        }

    async def upload(self, visit: Visit) -> Response:
        """Store a file that the browser uploads, and show an estimate of its batch.

        The form's token is in the URL, so that the body can be processed as a stream. During the upload, the
        lines are checked, and `upload_events` shows the problems. If too many uploads are being checked, this
        one is not.
        """
        visit.check_csrf(visit.argument("csrf"))
        request, key = visit.request, (visit.identity, visit.argument("upload"))
        size = request.headers.get("content-length", "")
        of_visitor = self._checking.count(visit.identity)
        check = self._uploads[key] = UploadCheck(
            self._settings,
            self._endpoints,
            int(size) if _SIZE.fullmatch(size) else 0,
            is_checked=len(self._checking) < _MAX_CHECKS and of_visitor < _MAX_CHECKS_PER_VISITOR,
        )
        if check.is_checked:
            self._checking.append(visit.identity)
        try:
            file = await visit.api.upload(
                check.counting(request.receive),
                request.headers.get("content-type", ""),
                FileObject,
                check.feed if check.is_checked else None,
            )
        finally:
            if check.is_checked:
                self._checking.remove(visit.identity)
            if self._uploads.get(key) is check:  # and not a second upload of the same page
                del self._uploads[key]
        return RedirectResponse(link("/new", file=file.id), 303)

    async def upload_events(self, visit: Visit) -> Response:
        """Stream the progress of an upload, and the problems found in its lines, to the page that uploads.

        If another API process receives the upload, the page shows the problems only when it is complete.
        """
        key, shown = (visit.identity, visit.argument("upload")), UploadCheck(self._settings, (), 0)

        async def progress() -> bytes:
            nonlocal shown
            shown = self._uploads.get(key, shown)
            return self._renderer.fragment(visit, "upload.html", {"check": shown})

        return await self._live.stream(visit, progress, seconds=_CHECK_SECONDS)

    async def content(self, visit: Visit) -> Response:
        file = await visit.api.get(f"/v1/files/{visit.path('file_id')}", FileObject)
        conditions = ("range", "if-range", "if-none-match")
        return Forwarded(visit, f"/v1/files/{file.id}/content", conditions)

    async def form(self, visit: Visit) -> Response:
        """Show the form for an upload.

        If there is a file already, show its estimate and the form for a batch.
        """
        file_id, once = visit.argument("file"), token_hex(16)
        if not file_id:
            context = {"action": link("/files", csrf=visit.csrf, upload=once), "upload": once}
            return self._renderer.page(visit, "new_file.html", context)
        if not is_file_id(file_id):
            raise file_not_found(file_id)
        file = await visit.api.get(f"/v1/files/{file_id}", FileObject)
        endpoint = visit.argument("endpoint")
        if endpoint not in self._endpoints:
            headers = {"range": f"bytes=0-{FIRST_LINE_BYTES - 1}"}
            async with visit.api.open(f"/v1/files/{file_id}/content", headers=headers) as response:
                endpoint = endpoint_of(await response.body(), self._endpoints)
        estimate, problem = None, ""
        try:
            body = {"input_file_id": file.id, "endpoint": endpoint}
            estimate = await visit.api.post("/v1/batches/x/estimate", EstimateObject, body)
        except ApiError as error:
            problem = error.message
        context = {"file": file, "endpoint": endpoint, "endpoints": self._endpoints, "once": once}
        context |= {"estimate": estimate, "problem": problem, "is_relaxed": self._is_relaxed}
        return self._renderer.page(visit, "new_batch.html", context)

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


def _metadata(text: str) -> dict[str, str]:
    """Parse text with one `key=value` on each line.

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
