"""Functions that answer single calls of clients in the fake database, in place of workers."""

import json
from collections.abc import Mapping

from batchwright.contracts.errors import LineCode
from batchwright.rules.calls.call_results import answers_of
from batchwright.rules.results.output_lines import error_line, result_line
from tests.fakes.api import ApiFixture

LINE_ID = "batch_req_" + 32 * "0"


async def answer(
    api: ApiFixture, id: str, body: Mapping[str, object], status: int = 200, tenant: str = "default"
) -> None:
    """Record the response of a backend to a call."""
    line = result_line(
        LINE_ID, id, status_code=status, backend_request_id="r", body=json.dumps(body).encode()
    )
    await api.database.calls.answer(tenant, answers_of([line]))


async def fail(api: ApiFixture, id: str, code: LineCode, message: str = "why") -> None:
    """Record an error of Batchwright as the answer of a call."""
    await api.database.calls.answer("default", answers_of([error_line(LINE_ID, id, code, message)]))
