"""Pages that upload and download files, show the estimate of a batch, and create the batch."""

from collections.abc import Mapping
from secrets import token_hex

from starlette.responses import Response

from batchwright.api.errors import ApiError, file_not_found
from batchwright.api.ui.csrf import FIELD, check_token
from batchwright.api.ui.live import Fragment, LiveFragments
from batchwright.api.ui.upload_check import FIRST_LINE_BYTES, UploadCheck, endpoint_of
from batchwright.api.ui.visit import Page, Visit, see_other, whole_number
from batchwright.contracts.api_objects.estimates import EstimateObject
from batchwright.contracts.api_objects.openai import BatchObject, FileObject
from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.ids import is_file_id
from batchwright.settings import Settings

# Uploads that are checked at once, in this process and of one visitor. Others are checked when they are
# complete.
_MAX_CHECKS, _MAX_CHECKS_PER_VISITOR = 8, 2
_CHECK_SECONDS = 1.0


class FilePages:
    def __init__(self, settings: Settings, live: LiveFragments) -> None:
        self._settings, self._live = settings, live
        self._is_relaxed = settings.profile is Profile.RELAXED
        self._endpoints = [each.value for each in Endpoint if each.is_openais or self._is_relaxed]
        # Checks of the files that are being uploaded, by the visitor and the id of the page.
        self._uploads = list[tuple[tuple[str, str], UploadCheck]]()

    def table(self) -> dict[str, Page]:
        return {
            "GET /new": self.form,
            "POST /new": self.create,
            "POST /files": self.upload,
            "GET /files/events": self.upload_events,
            "GET /files/{id}/content": self.content,
        }

    async def upload(self, visit: Visit) -> Response:
        """Store a file that the browser uploads. Then redirect the browser to the form for a new batch.

        The token that protects the form (CSRF) is in the URL, so that the body can be processed as a stream.
        During the upload, the lines are checked, and `upload_events` shows the problems. If too many uploads
        are already being checked, the lines of this upload are not checked.
        """
        check_token(visit.argument(FIELD), visit.csrf)
        checked = [visitor for (visitor, _), check in self._uploads if check.is_checked]
        is_checked = len(checked) < _MAX_CHECKS and checked.count(visit.identity) < _MAX_CHECKS_PER_VISITOR
        size = whole_number(visit.request.headers.get("content-length", ""), "Content-Length") or 0
        check = UploadCheck(self._settings, self._endpoints, size, is_checked=is_checked)
        upload = (visit.identity, visit.argument("upload")), check
        self._uploads.append(upload)
        try:
            body, observer = check.counting(visit.request.receive), check.feed if is_checked else None
            file = await visit.api.upload(body, FileObject, observer)
        finally:
            self._uploads.remove(upload)
        return see_other("/new", file=file.id)

    async def upload_events(self, visit: Visit) -> Response:
        """Stream the progress of an upload, and the problems in its lines, to the page that uploads the file.

        Only the API process that receives the upload knows its progress. If another process sends this
        stream, the page shows the problems only when the upload is complete.
        """
        upload, shown = (visit.identity, visit.argument("upload")), UploadCheck(self._settings, (), 0)

        async def progress() -> Fragment:
            nonlocal shown
            shown = next((check for key, check in reversed(self._uploads) if key == upload), shown)
            return Fragment(visit.fragment("upload.html", check=shown))

        return await self._live.stream(visit, progress, seconds=_CHECK_SECONDS)

    async def content(self, visit: Visit) -> Response:
        file = await visit.api.get(f"/v1/files/{visit.path('id')}", FileObject)
        conditions = ("range", "if-range", "if-none-match")
        return visit.api.forwarded(f"/v1/files/{file.id}/content", conditions)

    async def form(self, visit: Visit) -> Response:
        """Show the form to upload a file. If a file was uploaded, show its estimate and the form to create a
        batch.
        """
        file_id, once = visit.argument("file"), token_hex(16)
        if not file_id:
            return visit.page("new_file.html", title="New batch", upload=once)
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
        return visit.page("new_batch.html", title="New batch", **context)

    async def create(self, visit: Visit) -> Response:
        form = await visit.form()
        extension = {
            "priority": whole_number(form.get("priority", ""), "priority"),
            "max_cost": form.get("max_cost"),
            "deduplicate": "deduplicate" in form or None,
        }
        body = {
            "input_file_id": form.get("file"),
            "endpoint": form.get("endpoint"),
            "completion_window": form.get("window") or "24h",
            "metadata": _metadata(form.get("metadata", "")),
            "x_batchwright": _filled(extension),
        }
        once = form.get("once", "")
        headers = {"idempotency-key": once} if once.isascii() and once.isalnum() else {}
        batch = await visit.api.post("/v1/batches", BatchObject, _filled(body), headers)
        return see_other(f"/batches/{batch.id}")


def _filled(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that are not empty."""
    return {name: value for name, value in fields.items() if value not in ("", None, {})}


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
