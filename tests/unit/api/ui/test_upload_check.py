"""The lines of an upload are checked as they arrive, for the endpoint in the first line."""

import pytest

from batchwright.api.ui import upload_check
from batchwright.api.ui.upload_check import FIRST_LINE_BYTES, UploadCheck, endpoint_of
from batchwright.contracts.terms import Endpoint
from batchwright.settings import load

ENDPOINTS = [Endpoint.CHAT_COMPLETIONS, Endpoint.EMBEDDINGS]
LINE = (
    b'{"custom_id": "%d", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "q"}}\n'
)


async def test_the_first_line_names_the_endpoint_of_all_lines_however_it_is_cut() -> None:
    other = LINE.replace(b"embeddings", b"chat/completions") % 2
    for cut in (1, len(LINE) // 2, len(LINE) - 1):
        check = UploadCheck(load(), ENDPOINTS, 0)
        content = LINE % 1 + other
        for piece in (content[:cut], content[cut:]):
            await check.feed(piece)
        assert (check.lines, [error.line for error in check.errors.as_list()]) == (2, [2])


async def test_a_first_line_without_an_end_is_not_kept_without_limit() -> None:
    check = UploadCheck(load(max_line_bytes=2 * FIRST_LINE_BYTES), ENDPOINTS, 0)
    for _ in range(5):
        await check.feed(b"x" * FIRST_LINE_BYTES)
    assert check.lines == 0
    await check.feed(b"\n" + LINE % 1)
    assert check.errors.as_list()[0].code == "line_too_long"


async def test_only_the_first_problems_are_kept_and_all_are_counted() -> None:
    check = UploadCheck(load(), ENDPOINTS, 0)
    await check.feed(LINE % 1 + b"{}\n" * 3000)
    assert (check.lines, check.errors.count > 3000, len(check.errors.as_list())) == (3001, True, 1000)


async def test_only_the_first_lines_are_checked_and_the_others_are_no_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upload_check, "_MAX_LINES", 3)
    check = UploadCheck(load(), ENDPOINTS, 0)
    await check.feed(LINE % 1 + LINE % 2 + LINE % 3)
    assert (check.lines, check.is_full) == (3, False)
    for _ in range(2):
        await check.feed(LINE % 3 + b"{}\n")
    assert (check.lines, check.is_full, check.errors.count) == (3, True, 0)


async def test_no_more_lines_are_checked_than_a_batch_may_have() -> None:
    check = UploadCheck(load(max_lines=2), ENDPOINTS, 0)
    await check.feed(LINE % 1 + LINE % 2 + LINE % 3)
    assert (check.lines, check.is_full, check.errors.count) == (2, True, 0)


def test_the_endpoint_of_a_file_is_chat_completions_if_its_first_line_names_none() -> None:
    for start in (b"", b"nonsense\n", b"[]\n", b'{"url": "/v1/other"}\n', b'{"url": 3}\n'):
        assert endpoint_of(start, ENDPOINTS) == Endpoint.CHAT_COMPLETIONS
    assert endpoint_of(LINE, ENDPOINTS) == Endpoint.EMBEDDINGS
