"""Pages of a batch's lines: requests beside their responses, and the search by `custom_id`."""

import json
from collections.abc import AsyncIterator, Collection, Mapping

from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from batchwright.api.errors import ApiError
from batchwright.api.ui.api_client import ApiClient, Query
from batchwright.api.ui.rendering import link
from batchwright.api.ui.visit import Page, Visit, whole_number
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.rules.input.line_splitter import InputLine, LineSplitter
from batchwright.rules.json_text import replace_lone_surrogates

_PER_PAGE = 20
_MAX_LINE_BYTES = 16 * 1024 * 1024
_MAX_PAGE_BYTES = 4 * 1024 * 1024  # a page has fewer lines if they are large
_MAX_SEARCHED_BYTES = 64 * 1024 * 1024
_OBJECT = TypeAdapter(dict[str, object])


async def lines(visit: Visit) -> Response:
    """Show lines of a batch with their results, or only the line with a certain `custom_id`.

    The query parameter `at` is a position in the input file, in bytes. The search for the requests of this
    page begins there.
    """
    api, path = visit.api, f"/v1/batches/{visit.path('id')}"
    batch = await api.get(path, BatchObject)
    status = "failed" if visit.argument("status") == "failed" else "completed"
    custom_id = visit.argument("custom_id")
    start = 0 if custom_id else whole_number(visit.argument("at"), "at") or 0
    results, more = list[dict[str, object]](), False
    for each in ("completed", "failed") if custom_id else (status,):
        query = {"status": each, "custom_id": custom_id, "after": visit.argument("after")}
        found, more = await _results(api, f"{path}/x/results", query)
        results += found
    wanted = [str(result.get("custom_id")) for result in results]
    requests, end = await _requests(api, batch.input_file_id, wanted, start)
    following = None
    if more and results:
        query = {"status": status, "custom_id": custom_id, "after": results[-1].get("id"), "at": end}
        following = link(f"/batches/{batch.id}/lines", **query)
    context = {"lines": [(result, requests.get(id)) for result, id in zip(results, wanted, strict=True)]}
    context |= {"batch": batch, "status": status, "custom_id": custom_id, "following": following}
    return visit.page("lines.html", title=f"Lines of {batch.id}", **context)


LINE_PAGES: Mapping[str, Page] = {"GET /batches/{id}/lines": lines}


async def _results(api: ApiClient, path: str, query: Query) -> tuple[list[dict[str, object]], bool]:
    """Return the results for one page, and True if further results follow."""
    found, size = list[dict[str, object]](), 0
    async with api.open(path, query) as response:
        async for line in _lines(response.pieces):
            if len(found) == _PER_PAGE or size > _MAX_PAGE_BYTES:
                return found, True
            size += line.length
            if line.data is not None and (result := _object(line.data)):
                found.append(result)
    return found, False


async def _requests(
    api: ApiClient, file_id: str, custom_ids: Collection[str], start: int
) -> tuple[dict[str, object], int]:
    """Find the requests that belong to one page of results. Return their bodies, by custom id, and the
    position at which the search has ended.

    Results are in the order of the input. So the search for the next page can begin at the returned position.
    A search ends when all requests are found, or after `_MAX_SEARCHED_BYTES`. All positions are in bytes.

    Args:
        file_id: id of the input file.
        custom_ids: custom ids of the requests to find.
        start: position in the file at which the search begins.
    """
    found, at = dict[str, object](), start
    if not custom_ids:
        return found, at
    # The forms that a custom id usually has in JSON, to skip other lines without parsing them.
    forms = [json.dumps(each, ensure_ascii=ascii_only) for each in custom_ids for ascii_only in (True, False)]
    texts = {form.encode(errors="surrogatepass") for form in forms}
    try:
        headers = {"range": f"bytes={start}-{start + _MAX_SEARCHED_BYTES}"}
        async with api.open(f"/v1/files/{file_id}/content", headers=headers) as response:
            async for line in _lines(response.pieces):
                if len(found) == len(set(custom_ids)):
                    break
                at = start + line.offset + line.length
                if line.data is not None and any(text in line.data for text in texts):
                    request = _object(line.data)
                    if request.get("custom_id") in custom_ids:
                        found[str(request["custom_id"])] = request.get("body", request.get("params"))
    except ApiError as error:
        if error.status not in (404, 416):  # the input was deleted, or its end is reached
            raise
    return found, at


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[InputLine]:
    """Yield the lines of a JSONL file. A line that is too long has no data."""
    splitter = LineSplitter(_MAX_LINE_BYTES)
    async for piece in pieces:
        for line in splitter.feed(piece):
            yield line
    for line in splitter.finish():
        yield line


def _object(line: bytes) -> dict[str, object]:
    """Parse a line as a JSON object. Return an empty dict if the line is no object or is nested too
    deeply.
    """
    try:
        return _OBJECT.validate_python(json.loads(replace_lone_surrogates(line)))
    except (ValueError, ValidationError, RecursionError):
        return {}
