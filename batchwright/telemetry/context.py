"""Fields of the current work, such as the batch id. They are added to every log entry and trace span."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

FieldValue = str | int
_fields: ContextVar[dict[str, FieldValue] | None] = ContextVar("fields", default=None)
_NONE: Mapping[str, FieldValue] = {}


def current_fields() -> Mapping[str, FieldValue]:
    """Return the fields of the current work: the fields of all enclosing `bind_fields` blocks."""
    return _fields.get() or _NONE


@contextmanager
def bind_fields(**fields: FieldValue) -> Generator[None]:
    """Context manager that adds fields to all log entries and trace spans of its block.

    If tasks are started in the block, their log entries and spans have the fields too.
    """
    token = _fields.set({**current_fields(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def add_fields(**fields: FieldValue) -> None:
    """Add fields to the innermost enclosing `bind_fields` block. If there is no such block, do nothing."""
    bound = _fields.get()
    if bound is not None:
        bound.update(fields)
