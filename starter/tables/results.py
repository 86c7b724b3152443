"""Stores results of batches on disk, finds them by custom id, and converts them to columns of a table."""

import sqlite3
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager
from typing import NamedTuple

import msgspec

from batchwright.rules.json_text import replace_lone_surrogates, storable
from batchwright.rules.results.line_results import LineResult
from batchwright.rules.results.token_usage import tokens_of

NO_RESULT = "no_result"  # error code of a row that has no line in the results
_CREATE = """CREATE TABLE results (
    custom_id TEXT PRIMARY KEY, answer TEXT, status_code INTEGER, error_code TEXT, error_message TEXT,
    input_tokens INTEGER, output_tokens INTEGER
) WITHOUT ROWID"""
# A batch that retries the failed lines of another one replaces its results, in any order of the two.
_ADD = """INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (custom_id) DO UPDATE SET answer = excluded.answer, status_code = excluded.status_code,
    error_code = excluded.error_code, error_message = excluded.error_message,
    input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens
WHERE excluded.error_code IS NULL OR results.error_code IS NOT NULL"""
_FIND = """SELECT answer, status_code, error_code, error_message, input_tokens, output_tokens
FROM results WHERE custom_id = ?"""


class ResultColumns(NamedTuple):
    """The columns that `collect` adds to each row of a table.

    If the request failed, or if the batch has no result for the row, all columns except `status_code`,
    `error_code` and `error_message` are None.

    Attributes:
        answer: text that the model generated; "" is possible. If the response has no text, the whole
            response as JSON.
        status_code: HTTP status of the backend's response; None if there was no response.
        error_code: code of the failure, as in the batch's `errors_summary`; `no_result` if the batch has no
            result for the row; None if the request completed.
        error_message: message for the error code.
        input_tokens, output_tokens: tokens that the backend reported; 0 if the backend reported none.
    """

    answer: str | None
    status_code: int | None
    error_code: str | None
    error_message: str | None
    input_tokens: int | None
    output_tokens: int | None


COLUMNS: list[tuple[str, type]] = [
    ("answer", str),
    ("status_code", int),
    ("error_code", str),
    ("error_message", str),
    ("input_tokens", int),
    ("output_tokens", int),
]
MISSING = ResultColumns(None, None, NO_RESULT, "The batch has no result for this row.", None, None)


class ResultsByCustomId:
    """A temporary file of results, with a search by custom id.

    The file is deleted at the end of the context manager `results_by_custom_id`.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __len__(self) -> int:
        return self._database.execute("SELECT count(*) FROM results").fetchone()[0]

    def add(self, results: Iterable[LineResult]) -> None:
        """Store results, one for each custom id.

        If a custom id has several results, the last completed result is kept. If none of them is completed,
        the last result is kept.
        """
        self._database.executemany(_ADD, ((storable(each.custom_id), *_columns(each)) for each in results))

    def find(self, custom_id: str) -> ResultColumns | None:
        found = self._database.execute(_FIND, (storable(custom_id),)).fetchone()
        return None if found is None else ResultColumns(*found)

    def examples(self) -> list[str]:
        """Return a few of the stored custom ids, as examples for an error message."""
        return [id for (id,) in self._database.execute("SELECT custom_id FROM results LIMIT 3")]


@contextmanager
def results_by_custom_id() -> Generator[ResultsByCustomId]:
    """Context manager that yields an empty store of results."""
    with closing(sqlite3.connect("", isolation_level=None)) as database:  # "" is a temporary file
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute(_CREATE)
        yield ResultsByCustomId(database)


def _columns(result: LineResult) -> ResultColumns:
    if result.error is not None:
        error = result.error
        return ResultColumns(None, result.status_code, error.code, error.message, None, None)
    tokens = tokens_of(result.content)
    answer = answer_text(result.content)
    return ResultColumns(answer, result.status_code, None, None, tokens.input_tokens, tokens.output_tokens)


class _Message(msgspec.Struct):
    content: str
    tool_calls: object = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: str | None = None


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    content: list[_Part] = []


class _Choices(msgspec.Struct):
    choices: list[_Choice]


class _Items(msgspec.Struct):
    output: list[_Item]


class _Parts(msgspec.Struct):
    content: list[_Part]


_BODIES = msgspec.json.Decoder(_Choices), msgspec.json.Decoder(_Items), msgspec.json.Decoder(_Parts)


def answer_text(content: bytes) -> str:
    """Return the text that the model generated. If the response has no text, return all of it as JSON.

    Examples of responses without text are embeddings and tool calls. If a response contains tool calls and an
    empty text, the empty text is ignored.
    """
    content = replace_lone_surrogates(content)
    for decoder in _BODIES:
        try:
            text = _text_of(decoder.decode(content))
        except (msgspec.MsgspecError, RecursionError):
            continue
        return content.decode() if text is None else text
    return content.decode()


def _text_of(body: _Choices | _Items | _Parts) -> str | None:
    match body:
        case _Choices(choices=[_Choice(message=_Message(content=text, tool_calls=calls)), *_]):
            return None if calls and not text else text
        case _Choices(choices=[first, *_]):
            return first.text
        case _Items(output=items):
            has_calls = any(item.type.endswith("_call") for item in items)
            return _joined([part for item in items for part in item.content], has_calls=has_calls)
        case _Parts(content=parts):
            return _joined(parts, has_calls=any(part.type.endswith("tool_use") for part in parts))
        case _:
            return None


def _joined(parts: list[_Part], *, has_calls: bool) -> str | None:
    texts = [part.text for part in parts if part.text is not None]
    return "".join(texts) if any(texts) or (texts and not has_calls) else None
