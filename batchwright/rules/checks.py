"""Checking the lines of a batch's input: the accepted request, or every error of the line."""

from typing import NamedTuple

import msgspec
from msgspec import UNSET, Struct

from batchwright.contracts.openai import Endpoint, Profile
from batchwright.rules.bodies import body_problems, count_inputs, kind_of, what_is_needed
from batchwright.rules.digests import Seen
from batchwright.rules.findings import Code, Findings
from batchwright.rules.lines import (
    UNREADABLE,
    Body,
    Fields,
    Line,
    Value,
    is_json,
    read_body,
    read_new_fields,
    read_text,
)
from batchwright.rules.usual import UsualBody, UsualLine


class Limits(NamedTuple):
    """The operator's limits of one batch (R13)."""

    max_lines: int = 50_000
    max_line_bytes: int = 10 * 1024 * 1024
    max_embedding_inputs: int = 50_000
    one_model: bool = False  # R6


class Request(Struct, frozen=True, gc=False):
    """An accepted line. `model` is None where the endpoint allows that."""

    custom_id: str
    model: str | None
    body: Body | UsualBody


class LineChecker:
    """Checks lines in the order of the file; what is wrong goes to `findings`, never into an exception."""

    def __init__(self, endpoint: Endpoint, profile: Profile, limits: Limits, findings: Findings) -> None:
        self.findings = findings
        self._endpoint = endpoint
        self._strict = profile is Profile.STRICT
        self._limits = limits
        self._asks_of_all = limits.one_model or endpoint is Endpoint.EMBEDDINGS
        self._has_what_it_needs = what_is_needed(endpoint)
        self._ids = Seen()
        self._inputs = 0
        self._model: str | None = None

    def check(self, line: Line, usual: UsualLine | None = None) -> Request | None:
        """The request, or None if the line has an error. `usual`: what it says, if it is of that shape."""
        before = self.findings.count
        if usual is None or not self._is_good(usual):
            return self._carefully(line, before)
        body = usual.body
        request = Request(usual.custom_id, body.model or None, body)
        if self._asks_of_all:
            self._all_lines(request.model, body.input, line.number)
            return request if self.findings.count == before else None
        return request

    def forget_ids(self) -> None:
        """There is no further line whose custom_id could be one of them."""
        self._ids = Seen()

    def _is_good(self, line: UsualLine) -> bool:
        """Whether it has no error of its own; then its custom_id is noted."""
        if line.url != self._endpoint and (line.url is not UNSET or self._strict):
            return False
        if line.method is UNSET and self._strict:
            return False
        return self._has_what_it_needs(line.body) and self._ids.add(line.custom_id.encode())

    def _carefully(self, line: Line, before: int) -> Request | None:
        fields = self._fields(line)
        if fields is None:
            return None
        custom_id = self._custom_id(fields, line.number)
        self._method(fields, line.number)
        self._url(fields, line.number)
        body = self._body(fields, line.number)
        if body is not None:
            self._all_lines(read_text(body.model), body.input, line.number)
        if custom_id is None or body is None or self.findings.count > before:
            return None
        return Request(custom_id, read_text(body.model) or None, body)

    def _fields(self, line: Line) -> Fields | None:
        if line.data is None:
            most = self._limits.max_line_bytes
            message = f"This line has {line.length - 1} bytes; a line may have at most {most}."
            self.findings.add(Code.LINE_TOO_LONG, message, line=line.number)
            return None
        try:
            return read_new_fields(line.data)
        except msgspec.ValidationError:
            if is_json(line.data):
                self.findings.add(Code.INVALID_REQUEST, "This line is not a JSON object.", line=line.number)
                return None
        except UNREADABLE:
            pass
        message = "This line is not parseable as valid JSON."
        self.findings.add(Code.INVALID_JSON_LINE, message, line=line.number)
        return None

    def _custom_id(self, fields: Fields, number: int) -> str | None:
        if fields.custom_id is UNSET:
            self._missing("custom_id", number)
            return None
        custom_id = read_text(fields.custom_id)
        if not custom_id:
            kind = kind_of(fields.custom_id) if custom_id is None else "an empty string"
            message = f"Invalid type for 'custom_id': expected a non-empty string, but got {kind} instead."
            self.findings.add(Code.INVALID_TYPE, message, param="custom_id", line=number)
            return None
        if not self._ids.add(custom_id.encode()):
            message = (
                "The custom_id for this request is a duplicate of another request. "
                "Please ensure that every custom_id is unique within the batch."
            )
            self.findings.add(Code.DUPLICATE_CUSTOM_ID, message, param="custom_id", line=number)
        return custom_id

    def _method(self, fields: Fields, number: int) -> None:
        if fields.method is UNSET or kind_of(fields.method) == "null":
            if self._strict:
                self._missing("method", number)
        elif read_text(fields.method) != "POST":
            message = "Invalid method. Only POST is supported in the Batch API."
            self.findings.add(Code.INVALID_METHOD, message, param="method", line=number)

    def _url(self, fields: Fields, number: int) -> None:
        if fields.url is UNSET or kind_of(fields.url) == "null":
            if self._strict:
                self._missing("url", number)
        elif read_text(fields.url) != self._endpoint:
            message = "The URL provided for this request does not match the batch endpoint."
            self.findings.add(Code.INVALID_URL, message, param="url", line=number)

    def _body(self, fields: Fields, number: int) -> Body | None:
        if fields.body is UNSET:
            self._missing("body", number)
            return None
        kind = kind_of(fields.body)
        if kind != "an object":
            message = f"Invalid type for 'body': expected an object, but got {kind} instead."
            self.findings.add(Code.INVALID_TYPE, message, param="body", line=number)
            return None
        body = read_body(fields.body)
        for problem in body_problems(self._endpoint, body):
            self.findings.add(problem.code, problem.message, param=problem.param, line=number)
        return body

    def _all_lines(self, model: str | None, inputs: Value, number: int) -> None:
        """What is asked of all lines together."""
        if self._limits.one_model:
            self._one_model(model or "", number)
        if self._endpoint is Endpoint.EMBEDDINGS:
            self._embedding_inputs(inputs, number)

    def _one_model(self, model: str, number: int) -> None:
        if self._model is None:
            self._model = model
        elif model != self._model:
            message = (
                f"The model '{model[:256]}' is not that of the batch's first request, '{self._model[:256]}'."
            )
            self.findings.add(Code.MISMATCHED_MODEL, message, param="body.model", line=number)

    def _embedding_inputs(self, inputs: Value, number: int) -> None:
        most = self._limits.max_embedding_inputs
        if self._inputs > most:
            return
        self._inputs += count_inputs(inputs, most - self._inputs)
        if self._inputs > most:
            message = f"With this request the batch has more than {most} embedding inputs. Split the batch."
            self.findings.add(Code.TOO_MANY_EMBEDDING_INPUTS, message, param="body.input", line=number)

    def _missing(self, field: str, number: int) -> None:
        message = f"Missing required parameter: '{field}'."
        self.findings.add(Code.MISSING_REQUIRED_PARAMETER, message, param=field, line=number)
