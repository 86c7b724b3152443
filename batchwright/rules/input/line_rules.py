"""Rules that accept or refuse a line of a batch's input. The rules for the body are in `body_rules`.

`input_validator` applies all these rules to the lines of an input.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Struct

from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.growing_bytes import GrowingBytes, NewBytes
from batchwright.rules.input.ambiguous_keys import BODY_NAMES, LINE_NAMES, LineTemplates, ambiguous_keys
from batchwright.rules.input.body_rules import (
    BodyProblem,
    body_problems,
    count_inputs,
    kind_of,
    meets_requirements_of,
    prompt_field,
)
from batchwright.rules.input.custom_id_uniqueness import LineIds
from batchwright.rules.input.line_parser import (
    DECODE_ERRORS,
    FastBody,
    FastLine,
    LineFields,
    RawValue,
    RequestBody,
    has_json_syntax,
    read_body,
    read_new_fields,
    read_text,
)
from batchwright.rules.input.line_splitter import InputLine
from batchwright.rules.input.validation_errors import ValidationCode, ValidationErrors
from batchwright.rules.json_text import storable

_SHOWN_CHARACTERS = 100  # maximum characters of a wrong URL in a message
_MAX_REPORTED_KEYS = 10  # maximum number of ambiguous keys reported per line


class InputLimits(NamedTuple):
    """The operator's limits for the input of one batch.

    Attributes:
        max_embedding_inputs: maximum number of texts or token arrays in all embeddings requests of the batch.
        one_model: True if all lines must have the same model.
        bodies_fail_alone: effect of a line with an invalid body. If True, only this line fails. If False, the
            whole batch fails.
    """

    max_lines: int = 50_000
    max_line_bytes: int = 10 * 1024 * 1024
    max_embedding_inputs: int = 50_000
    one_model: bool = False  # True if all lines must have the model of the first line
    bodies_fail_alone: bool = False  # True if a body that is not valid does not fail the batch


class AcceptedRequest(Struct, frozen=True, gc=False):
    """The request in a line that has passed all checks.

    If the line names no model, `model` is None. Some endpoints allow such lines.
    """

    custom_id: str
    model: str | None
    body: RequestBody | FastBody


class RejectedRequest(Struct, frozen=True, gc=False):
    """A line that fails alone because of its invalid body, while the batch continues.

    Such lines exist only if `InputLimits.bodies_fail_alone` is True. If the body names no model, `model` is
    None. `describe_body_problems` returns why the body is invalid.
    """

    custom_id: str
    model: str | None


def describe_body_problems(endpoint: Endpoint, body: RawValue) -> str:
    """Return all problems of a line's body, as sentences; empty if the body is valid."""
    return " ".join(problem.message for problem in _problems(endpoint, body))


class LineValidator:
    """A validator for the lines of an input, in the order of the input.

    Errors are recorded in `errors`, not raised.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        profile: Profile,
        limits: InputLimits,
        errors: ValidationErrors,
        new_bytes: NewBytes = GrowingBytes,
    ) -> None:
        self.errors = errors
        self._new_bytes = new_bytes
        self._endpoint = endpoint
        self._strict = profile is Profile.STRICT
        self._limits = limits
        self._has_batch_limits = limits.one_model or endpoint is Endpoint.EMBEDDINGS
        self._meets_requirements = meets_requirements_of(endpoint)
        self._templates = LineTemplates(prompt_field(endpoint))
        self._ids = LineIds(new_bytes)
        self._inputs = 0
        self._model: str | None = None

    def check(
        self, line: InputLine, fast: FastLine | None = None
    ) -> AcceptedRequest | RejectedRequest | None:
        """Check a line of the input.

        - If the line is valid, return an AcceptedRequest.
        - If only the body is invalid, and `bodies_fail_alone` is True, return a RejectedRequest.
        - Otherwise record the errors of the line, and return None.

        Args:
            line: the line, as `LineSplitter` has found it.
            fast: result of `fast_parse` for the line. If it is None, the line gets the slower, strict checks.
        """
        before = self.errors.count
        if fast is None or line.data is None or not self._is_valid(line.data, fast, line.number):
            return self._check_strictly(line, before)
        body = fast.body
        request = AcceptedRequest(fast.custom_id, body.model or None, body)
        if self._has_batch_limits:
            self._check_batch_limits(request.model, body.input, line.number)
            return request if self.errors.count == before else None
        return request

    def finish(self) -> None:
        """Record an error for each repeated `custom_id` that was not found before.

        Call this once, after the last line. All ids are then deleted, to free their memory.
        """
        for line in self._ids.repeated():
            self._add_duplicate(line)
        self._ids = LineIds(self._new_bytes)

    def _is_valid(self, data: bytes, line: FastLine, number: int) -> bool:
        """Return True if a line that `fast_parse` has read has no error. Record its `custom_id`.

        If the result is False, the caller makes the strict checks to find the errors.

        Args:
            data: bytes of the line.
            line: result of `fast_parse` for the line.
            number: number of the line in the input.
        """
        if line.url != self._endpoint and (line.url is not UNSET or self._strict):
            return False
        if line.method is UNSET and self._strict:
            return False
        return (
            self._meets_requirements(line.body)
            and self._templates.is_unambiguous(data, line)
            and self._ids.add(line.custom_id.encode(), number)
        )

    def _check_strictly(self, line: InputLine, before: int) -> AcceptedRequest | RejectedRequest | None:
        fields = self._fields(line)
        if fields is None:
            return None
        self._check_keys(line.data or b"", line.number)
        custom_id = self._check_custom_id(fields, line.number)
        self._check_method(fields, line.number)
        self._check_url(fields, line.number)
        if self._limits.bodies_fail_alone and custom_id and any(_problems(self._endpoint, fields.body)):
            return RejectedRequest(custom_id, _model_of(fields.body)) if self.errors.count == before else None
        body = self._check_body(fields, line.number)
        if body is not None:
            self._check_batch_limits(read_text(body.model), body.input, line.number)
        if custom_id is None or body is None or self.errors.count > before:
            return None
        return AcceptedRequest(custom_id, read_text(body.model) or None, body)

    def _fields(self, line: InputLine) -> LineFields | None:
        if line.data is None:
            most = self._limits.max_line_bytes
            message = f"This line has {line.length - 1} bytes; a line may have at most {most}."
            self.errors.add(ValidationCode.LINE_TOO_LONG, message, line=line.number)
            return None
        try:
            return read_new_fields(line.data)
        except msgspec.ValidationError:
            if has_json_syntax(line.data):
                self.errors.add(
                    ValidationCode.INVALID_REQUEST, "This line is not a JSON object.", line=line.number
                )
                return None
        except DECODE_ERRORS:
            pass
        message = "This line is not parseable as valid JSON."
        self.errors.add(ValidationCode.INVALID_JSON_LINE, message, line=line.number)
        return None

    def _check_custom_id(self, fields: LineFields, number: int) -> str | None:
        if fields.custom_id is UNSET:
            self._add_missing("custom_id", number)
            return None
        custom_id = read_text(fields.custom_id)
        if not custom_id:
            kind = kind_of(fields.custom_id) if custom_id is None else "an empty string"
            message = f"Invalid type for 'custom_id': expected a non-empty string, but got {kind} instead."
            self.errors.add(ValidationCode.INVALID_TYPE, message, param="custom_id", line=number)
            return None
        if not self._ids.add(custom_id.encode("utf-8", "surrogatepass"), number):
            self._add_duplicate(number)
        return custom_id

    def _add_duplicate(self, line: int) -> None:
        message = (
            "The custom_id for this request is a duplicate of another request. "
            "Please ensure that every custom_id is unique within the batch."
        )
        self.errors.add(ValidationCode.DUPLICATE_CUSTOM_ID, message, param="custom_id", line=line)

    def _check_keys(self, text: bytes, number: int) -> None:
        """Record an error for each ambiguous (repeated or not lower-case) top-level key of the line."""
        for problem in _ambiguous(text, LINE_NAMES, ""):
            self.errors.add(problem.code, problem.message, param=problem.param, line=number)

    def _check_method(self, fields: LineFields, number: int) -> None:
        if fields.method is UNSET or kind_of(fields.method) == "null":
            if self._strict:
                self._add_missing("method", number)
        elif read_text(fields.method) != "POST":
            message = "Invalid method. Only POST is supported in the Batch API."
            self.errors.add(ValidationCode.INVALID_METHOD, message, param="method", line=number)

    def _check_url(self, fields: LineFields, number: int) -> None:
        if fields.url is UNSET or kind_of(fields.url) == "null":
            if self._strict:
                self._add_missing("url", number)
        elif (url := read_text(fields.url)) != self._endpoint:
            given = kind_of(fields.url) if url is None else repr(url[:_SHOWN_CHARACTERS])
            message = (
                f"The URL provided for this request, {given}, does not match the batch endpoint, "
                f"'{self._endpoint}'."
            )
            self.errors.add(ValidationCode.INVALID_URL, message, param="url", line=number)

    def _check_body(self, fields: LineFields, number: int) -> RequestBody | None:
        if fields.body is UNSET:
            self._add_missing("body", number)
            return None
        problems = list(_problems(self._endpoint, fields.body))
        for problem in problems:
            self.errors.add(problem.code, problem.message, param=problem.param, line=number)
        return read_body(fields.body) if kind_of(fields.body) == "an object" else None

    def _check_batch_limits(self, model: str | None, inputs: RawValue, number: int) -> None:
        """Record an error if this line breaks a limit that applies to all lines of the batch together.

        There are two such limits: all lines must have the same model, and the number of embedding inputs has
        a maximum.

        Args:
            model: model of the line; None if the line names no model.
            inputs: value of `input` in the line's body.
            number: number of the line.
        """
        if self._limits.one_model:
            self._check_model(model or "", number)
        if self._endpoint is Endpoint.EMBEDDINGS:
            self._check_embedding_inputs(inputs, number)

    def _check_model(self, model: str, number: int) -> None:
        if self._model is None:
            self._model = model
        elif model != self._model:
            message = (
                f"The model '{model[:256]}' is not that of the batch's first request, '{self._model[:256]}'."
            )
            self.errors.add(ValidationCode.MISMATCHED_MODEL, message, param="body.model", line=number)

    def _check_embedding_inputs(self, inputs: RawValue, number: int) -> None:
        most = self._limits.max_embedding_inputs
        if self._inputs > most:
            return
        self._inputs += count_inputs(inputs, most - self._inputs)
        if self._inputs > most:
            message = f"With this request the batch has more than {most} embedding inputs. Split the batch."
            self.errors.add(
                ValidationCode.TOO_MANY_EMBEDDING_INPUTS, message, param="body.input", line=number
            )

    def _add_missing(self, field: str, number: int) -> None:
        message = f"Missing required parameter: '{field}'."
        self.errors.add(ValidationCode.MISSING_REQUIRED_PARAMETER, message, param=field, line=number)


def _problems(endpoint: Endpoint, body: RawValue) -> Iterator[BodyProblem]:
    """Yield all problems of a line's body. The body must be valid JSON."""
    kind = kind_of(body)
    if body is UNSET or kind != "an object":
        message = f"Invalid type for 'body': expected an object, but got {kind} instead."
        yield BodyProblem(ValidationCode.INVALID_TYPE, "body", message)
        return
    yield from _ambiguous(bytes(body), BODY_NAMES, "body.")
    yield from body_problems(endpoint, read_body(body))


def _ambiguous(text: bytes, checked: frozenset[str], place: str) -> Iterator[BodyProblem]:
    """Yield a problem for each of the first 10 ambiguous top-level keys (repeated, or not in lower case).

    Args:
        text: a JSON object.
        checked: the key names that Batchwright checks. Other keys are ignored.
        place: text before the key's name in the error, such as `body.`.
    """
    for name in dict.fromkeys(islice(ambiguous_keys(text, checked), _MAX_REPORTED_KEYS)):
        meant = name.casefold()
        shown = (
            f"'{storable(name)}'" if name == meant else f"'{storable(name)}', which may be read as '{meant}',"
        )
        message = f"The name {shown} is ambiguous. Give '{meant}' once, in lower case."
        yield BodyProblem(ValidationCode.DUPLICATE_PARAMETER, f"{place}{meant}", message)


def _model_of(body: RawValue) -> str | None:
    """Return the model that a body names; None if it names no model or is not an object."""
    if body is UNSET or kind_of(body) != "an object":
        return None
    return read_text(read_body(body).model) or None
