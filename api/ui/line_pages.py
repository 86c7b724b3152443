"""Pages of a batch's lines: requests beside their responses, and the search by `custom_id`."""

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec
from starlette.responses import Response

from batchwright.api.errors import ApiError
from batchwright.api.ui.api_client import ApiClient, Query
from batchwright.api.ui.rendering import link
from batchwright.api.ui.visit import Page, Visit, whole_number
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.rules.calls.call_results import Response as BackendResponse
from batchwright.rules.calls.call_results import read_result
from batchwright.rules.input.line_parser import LineDamaged, read_request
from batchwright.rules.input.line_splitter import InputLine, LineSplitter
from batchwright.rules.json_indentation import indented_json
from batchwright.rules.results.output_lines import line_id

_PER_PAGE = 20
_MAX_LINE_BYTES = 16 * 1024 * 1024
_MAX_PAGE_BYTES = 4 * 1024 * 1024  # a page has fewer lines if they are large
_MAX_SEARCHED_BYTES = 64 * 1024 * 1024


class _ShownResult(NamedTuple):
    """The result of a line. `status` is the HTTP status of the backend's response; 0 if there is no
    response.
    """

    id: str
    custom_id: str
    status: int
    text: str


async def lines(visit: Visit) -> Response:
    """Show lines of a batch with their results, or only the line with a certain `custom_id`.

    The search for the requests of these lines begins at the byte `at` (a query parameter) of the input file.
    """
    api, path = visit.api, f"/v1/batches/{visit.path('id')}"
    batch = await api.get(path, BatchObject)
    status = "failed" if visit.argument("status") == "failed" else "completed"
    custom_id = visit.argument("custom_id")
    start = 0 if custom_id else whole_number(visit.argument("at"), "at") or 0
    results, more = list[_ShownResult](), False
    for each in ("completed", "failed") if custom_id else (status,):
        query = {"status": each, "custom_id": custom_id, "after": visit.argument("after")}
        found, more = await _results(api, f"{path}/x/results", query)
        results += found
    wanted = {result.custom_id for result in results}
    requests, end = await _requests(api, batch.input_file_id, wanted, start) if wanted else ({}, start)
    following = None
    if more and results:
        query = {"status": status, "custom_id": custom_id, "after": results[-1].id, "at": end}
        following = link(f"/batches/{batch.id}/lines", **query)
    context: dict[str, object] = {"lines": [(each, requests.get(each.custom_id)) for each in results]}
    context |= {"batch": batch, "status": status, "custom_id": custom_id, "following": following}
    return visit.page("lines.html", title=f"Lines of {batch.id}", **context)


LINE_PAGES: Mapping[str, Page] = {"GET /batches/{id}/lines": lines}


async def _results(api: ApiClient, path: str, query: Query) -> tuple[list[_ShownResult], bool]:
    """Return the results for one page. The second item is True if there are results for a further page."""
    found, size, splitter = list[_ShownResult](), 0, LineSplitter(_MAX_LINE_BYTES)
    async with api.open(path, query) as response:
        async for piece in response.pieces:
            for line in splitter.feed(piece):
                if len(found) == _PER_PAGE or size > _MAX_PAGE_BYTES:
                    return found, True
                size += line.length
                if line.data is not None:
                    found.append(_shown(line.data))
    return found, False


async def _requests(
    api: ApiClient, file_id: str, custom_ids: Collection[str], start: int
) -> tuple[dict[str, str], int]:
    """Find the requests that belong to one page of results. Return a dictionary, and the position in the file
    at which the search has ended. The keys of the dictionary are custom ids. The values are request bodies.

    A search ends when all requests are found, or after `_MAX_SEARCHED_BYTES`. Results are in the order of the
    input. Therefore the search for the next page can begin at the returned position.

    Args:
        file_id: id of the input file.
        custom_ids: custom ids of the requests to find.
        start: position in the file at which the search begins, in bytes.
    """
    found, at, splitter = dict[str, str](), start, LineSplitter(_MAX_LINE_BYTES)
    # The forms that a custom id usually has in JSON, to skip other lines without parsing them.
    forms = [json.dumps(each, ensure_ascii=ascii_only) for each in custom_ids for ascii_only in (True, False)]
    texts = {form.encode(errors="surrogatepass") for form in forms}

    def search(lines: Iterator[InputLine]) -> bool:
        nonlocal at
        for line in lines:
            at = start + line.offset + line.length
            if line.data is not None and any(text in line.data for text in texts):
                with suppress(LineDamaged):
                    custom_id, body = read_request(line.data)
                    if custom_id in custom_ids:
                        found[custom_id] = indented_json(body)
            if len(found) == len(custom_ids):
                return True
        return False

    try:
        headers = {"range": f"bytes={start}-{start + _MAX_SEARCHED_BYTES}"}
        async with api.open(f"/v1/files/{file_id}/content", headers=headers) as response:
            async for piece in response.pieces:
                if await asyncio.to_thread(search, splitter.feed(piece)):
                    return found, at
            search(splitter.finish())
    except ApiError as error:
        if error.status not in (404, 416):  # the input was deleted, or its end is reached
            raise
    return found, at


def _shown(line: bytes) -> _ShownResult:
    result = read_result(line)
    answer = result.response or BackendResponse(0, msgspec.Raw(msgspec.json.encode(result.error)))
    text = indented_json(memoryview(answer.body))
    return _ShownResult(line_id(line), result.custom_id, answer.status_code, text)
