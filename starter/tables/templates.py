"""Templates of requests: JSON whose strings are Jinja templates, rendered once for each row of a table."""

import json
import re
import resource
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import cast

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchwright.rules.input.line_rules import InputLimits
from batchwright.rules.json_text import RepeatedKey, unique_keys
from batchwright.starter.tables.errors import TableError
from batchwright.starter.tables.reading import Row, readable

MAX_ROW_SECONDS = 2.0  # maximum CPU time
MAX_ROW_MEMORY = 1024 * 1024 * 1024  # bytes that the rendering of a row may allocate
_MEMORY = Path("/proc/self/statm")
_ROWS_PER_MEASUREMENT = 256
MAX_CHARACTERS = InputLimits().max_line_bytes  # in a rendered string or a value of an expression
_JINJA = re.compile(r"\{\{|\{%|\{#")
_UNDEFINED = re.compile(r"'(.+)' is undefined")
_Variables = Mapping[str, object]
_Part = Callable[[_Variables], object]  # renders one value of the template


class RenderError(Exception):
    """A template cannot be rendered for a row.

    The message is a sentence with the reason. If the place in the template is known, the message names it.
    """


class RequestTemplate:
    """A template for the body of a request: a JSON file whose strings may be Jinja templates.

    Only values are rendered, never keys, so the result is always valid JSON. If a string consists of one
    expression, such as `"{{ n }}"`, the value of the expression replaces the string. This value can be a
    number, for example. Any other template is rendered to a string.

    The template is rendered once for each row of a table. Each column of the row is a variable. `row` is the
    whole row, and `columns` has the names of the columns. Templates run in Jinja's sandbox, without access to
    files, and with limits on time and memory.

    Raises:
        TableError: the file cannot be read, is not a JSON object, or has an error in a template.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._environment = _Sandbox(
            undefined=jinja2.StrictUndefined, finalize=_text_value, keep_trailing_newline=True
        )
        with readable(path):
            text = path.read_bytes()
        try:
            body: object = json.loads(text, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError, RepeatedKey) as error:
            raise TableError(f"{path} is not a template: it is not valid JSON ({error}).") from None
        if not isinstance(body, dict):
            raise TableError(f"{path} is not a template: it must be a JSON object, the body of a request.")
        self._memory = _MemoryLimit()
        with self._memory.applied():
            self._body = self._compiled(cast("object", body), "")

    def render(self, row: Row, columns: Sequence[str]) -> Row:
        """Return the body of the request for a row.

        Args:
            columns: names of the columns. Their order is also the order in the template's variable `columns`.

        Raises:
            RenderError: rendering fails, takes too long, or needs too much memory. One possible reason is a
                column that is not in the row.
        """
        try:
            with _time_limit(), self._memory.applied():
                return cast("Row", self._body({**row, "row": row, "columns": columns}))
        except _TooSlow:
            why = f"the template has not ended after {MAX_ROW_SECONDS:g} s of CPU time; is a loop endless?"
            raise RenderError(why) from None

    def _compiled(self, value: object, place: str) -> _Part:
        if isinstance(value, dict):
            members = cast("dict[str, object]", value).items()
            parts = {name: self._compiled(each, f"{place}.{name}".lstrip(".")) for name, each in members}
            return lambda variables: {name: part(variables) for name, part in parts.items()}
        if isinstance(value, list):
            items = cast("list[object]", value)
            each_part = [self._compiled(each, f"{place}[{n}]") for n, each in enumerate(items)]
            return lambda variables: [part(variables) for part in each_part]
        if isinstance(value, str) and _JINJA.search(value):
            return self._compiled_string(value, place)
        return lambda variables: value

    def _compiled_string(self, text: str, place: str) -> _Part:
        try:
            if (expression := self._only_expression(text)) is not None:
                value_of = self._environment.compile_expression(expression, undefined_to_none=False)
                return lambda variables: _rendered(place, variables, lambda: _defined(value_of(variables)))
            template = self._environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise TableError(f"{self._path}: {place}: {_reason(error)} (line {error.lineno}).") from None
        except Exception as error:  # constant expressions are computed already here
            raise TableError(f"{self._path}: {place}: {_reason(error)}.") from None
        return lambda variables: _rendered(place, variables, lambda: _text(template, variables))

    def _only_expression(self, text: str) -> str | None:
        """Return the expression if all of `text` is one `{{ expression }}`; otherwise None."""
        match self._environment.parse(text.strip()).body:
            case [nodes.Output(nodes=[only])] if not isinstance(only, nodes.TemplateData):
                return text.strip()[2:-2].removeprefix("-").removeprefix("+").removesuffix("-")
            case _:
                return None


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which also rejects multiplications and powers with too large results."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            _check_size(bits)
        elif isinstance(right, int) and isinstance(left, str | list | tuple):
            _check_size(len(cast("Sequence[object]", left)) * right)
        elif isinstance(left, int) and isinstance(right, str | list | tuple):
            _check_size(len(cast("Sequence[object]", right)) * left)
        return super().call_binop(context, operator, left, right)


class _MemoryLimit:
    """A limit on the additional memory that rendering may use. It works only on Linux.

    Without the limit, a short template could use any amount of memory, for example with filters.
    """

    def __init__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        self._uses, self._limit = 0, self._before[0]

    @contextmanager
    def applied(self) -> Generator[None]:
        """Context manager that makes Python raise MemoryError if the block exceeds the limit."""
        if self._uses % _ROWS_PER_MEASUREMENT == 0:
            self._limit = self._measured()
        self._uses += 1
        resource.setrlimit(resource.RLIMIT_AS, (self._limit, self._before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, self._before)

    def _measured(self) -> int:
        soft = self._before[0]
        try:
            used = int(_MEMORY.read_text().split()[0]) * resource.getpagesize()
        except OSError:  # not on Linux
            return soft
        most = used + MAX_ROW_MEMORY
        return most if soft == resource.RLIM_INFINITY else min(soft, most)


class _TooSlow(Exception):
    pass


@contextmanager
def _time_limit() -> Generator[None]:
    """Context manager that raises _TooSlow if the block needs more than `MAX_ROW_SECONDS` of CPU time."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_ROW_SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _rendered(place: str, variables: _Variables, render: Callable[[], object]) -> object:
    try:
        return render()
    except _TooSlow:
        raise
    except jinja2.UndefinedError as error:
        missing = _UNDEFINED.fullmatch(error.message or "")
        if missing is None:
            raise RenderError(f"{place}: {error.message}.") from None
        names = ", ".join(cast("Row", variables["row"]))
        raise RenderError(f"{place}: there is no column {missing[1]!r}; the columns are {names}.") from None
    except Exception as error:  # expressions call filters and methods, which raise anything
        raise RenderError(f"{place}: {_reason(error)}.") from None


def _text(template: jinja2.Template, variables: _Variables) -> str:
    pieces, size = list[str](), 0
    for piece in template.generate(variables):
        pieces.append(piece)
        size += len(piece)
        _check_size(size)
    return "".join(pieces)


def _defined(value: object) -> object:
    if isinstance(value, Undefined):
        str(value)  # raises UndefinedError, which names it
    return value


def _text_value(value: object) -> object:
    """Check a value that a template inserts into a text. Return the value unchanged.

    Raises:
        ValueError: the value is null, which would become the text `None`.
    """
    if value is None:
        raise ValueError("a value is null; write, for example, `{{ name or '' }}`")
    return value


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise OverflowError(f"the result has more than {MAX_CHARACTERS:,} characters")


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "the result needs too much memory"
    return str(error).split("\n")[0].rstrip(".") or type(error).__name__
