"""Writes requests from a list or a table as lines of an input file, and reads custom ids from such lines."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedReader
from typing import IO, NamedTuple, TypeVar
from uuid import uuid4

import msgspec
from openai import BaseModel

from batchwright.rules.input.line_writer import request_line
from batchwright.rules.input.oversized_input import PartFile, PartLimits, divide, group_id, part_metadata
from batchwright.rules.json_text import replace_lone_surrogates

MAX_BYTES_IN_MEMORY = 16 * 1024 * 1024  # a larger input file is written to disk
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

Body = Mapping[str, object]
Row = TypeVar("Row", bound=Mapping[str, object])


class Request(NamedTuple):
    """One request of a batch, with a custom id of your choice.

    Attributes:
        custom_id: identifies the request and its result. It must be unique in the batch.
        body: JSON object that is sent to the backend.
    """

    custom_id: str
    body: Body


def table(
    rows: Iterable[Row], body: Callable[[Row], Body], *, id_column: str | None = None
) -> Iterator[Request | Body]:
    """Yield one request for each row of a table, in the order of the rows.

    Args:
        rows: dictionaries of column names and values, such as from `csv.DictReader` or
            `DataFrame.to_dict("records")`.
        body: function that returns the body of the request for a row.
        id_column: name of the column with the custom ids. If None, `submit` chooses custom ids such as
            `request-0`.

    Raises:
        KeyError: a row does not have the column `id_column`.
    """
    for row in rows:
        yield body(row) if id_column is None else Request(str(row[id_column]), body(row))


class BatchLimits(BaseModel):
    """The limits of one batch, as the API reports them. The defaults are OpenAI's limits."""

    max_lines: int = PartLimits().lines
    max_batch_file_bytes: int = PartLimits().file_bytes


class Upload(NamedTuple):
    """The data to create one batch. Two requests are sent: `POST /v1/files`, then `POST /v1/batches`.

    Attributes:
        file: the input file.
        headers: headers of both requests.
        custom_ids: custom ids of all lines in the file, in order.
        creation: body of `POST /v1/batches`, without the id of the input file.
    """

    file: IO[bytes]
    headers: Mapping[str, str]
    custom_ids: list[str]
    creation: Mapping[str, object]


class Submission:
    """An input file with requests. The method `uploads` divides a file that is too large for one batch.

    Args:
        requests: requests or bodies. A body gets the custom id `request-N`; N is its index, from 0.
        endpoint: endpoint of all requests, such as `/v1/chat/completions`.
        file: empty file to which the requests are written as lines.
        idempotency_key: idempotency key of the upload and of the batch; None for a new key.

    Raises:
        ValueError: there are no requests, a custom id occurs twice or is not valid Unicode text, or a body is
            not valid JSON.
        TypeError: a body has a value that JSON cannot represent.
    """

    def __init__(
        self, requests: Iterable[Request | Body], endpoint: str, file: IO[bytes], idempotency_key: str | None
    ) -> None:
        self._endpoint = endpoint
        self._file, self._key = file, idempotency_key or str(uuid4())
        ids = dict[str, None]()
        for number, request in enumerate(requests):
            custom_id, body = request if isinstance(request, Request) else (f"request-{number}", request)
            if custom_id in ids:
                raise ValueError(f"The custom id {custom_id!r} occurs twice; each request needs its own.")
            if _LONE_SURROGATE.search(custom_id):  # results have U+FFFD in its place
                raise ValueError(
                    f"The custom id {custom_id!r} is not valid text: it has half of a UTF-16 pair, as Python "
                    "puts it into names of files that are not UTF-8. Use another id."
                )
            ids[custom_id] = None
            file.write(request_line(custom_id, endpoint, body))
        if not ids:
            raise ValueError("There are no requests; a batch needs at least one.")
        self._custom_ids = list(ids)

    def uploads(
        self,
        limits: BatchLimits,
        completion_window: str,
        metadata: Mapping[str, str] | None,
        x_batchwright: Mapping[str, object] | None,
    ) -> tuple[list[Upload], str]:
        """Return one `Upload` for each batch, in the order of the requests, and the id of their group.

        If there is only one batch, there is no group, and the id is empty.
        """
        creation: dict[str, object] = {
            "endpoint": self._endpoint,
            "completion_window": completion_window,
            "metadata": metadata,
            **({} if x_batchwright is None else {"x_batchwright": x_batchwright}),
        }
        parts = divide(self._file, PartLimits(limits.max_lines, limits.max_batch_file_bytes))
        if len(parts) == 1:
            self._file.seek(0)
            headers = {"Idempotency-Key": self._key}
            return [Upload(self._file, headers, self._custom_ids, creation)], ""
        group, uploads, first = group_id(self._file, [creation], self._key), list[Upload](), 0
        for number, part in enumerate(parts, 1):
            own = {"metadata": part_metadata(metadata, group, number, len(parts))}
            headers = {"Idempotency-Key": f"{group}-{number}"}
            custom_ids = self._custom_ids[first : first + part.lines]
            file = BufferedReader(PartFile(self._file, part))
            uploads.append(Upload(file, headers, custom_ids, {**creation, **own}))
            first += part.lines
        return uploads, group


def retry_body(codes: Iterable[str] | None, completion_window: str | None) -> dict[str, object]:
    """Return the body of `POST /v1/batches/{id}/x/retry`, and of `/x/resume`.

    A parameter that is None is left out, so the API uses its default.
    """
    given = {"codes": None if codes is None else list(codes), "completion_window": completion_window}
    return {name: value for name, value in given.items() if value is not None}


class _InputLine(msgspec.Struct):
    custom_id: str


def custom_id_of(line: bytes) -> str | None:
    """Return the custom id in one line of an input file; None if the line is blank.

    The line must be valid: the API has already accepted the file.
    """
    content = line.removeprefix(_BYTE_ORDER_MARK).strip()
    if not content:
        return None
    return msgspec.json.decode(replace_lone_surrogates(content), type=_InputLine).custom_id
