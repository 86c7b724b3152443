"""Fields of the current work, such as the batch id. They are added to every log entry and trace span."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

FieldValue = str | int
_fields: ContextVar[dict[str, FieldValue] | None] = ContextVar("fields", default=None)
_NONE: Mapping[str, FieldValue] = {}


def current_fields() -> Mapping[str, FieldValue]:
    """Return the log fields of the current work: the fields of all `bind_fields` blocks around the caller."""
    return _fields.get() or _NONE


@contextmanager
def bind_fields(**fields: FieldValue) -> Generator[None]:
    """Context manager that adds fields to all log entries and trace spans of its block.

    The fields are also added in tasks that are started in the block.
    """
    token = _fields.set({**current_fields(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def add_fields(**fields: FieldValue) -> None:
    """Add fields to the innermost `bind_fields` block around the caller. If there is none, do nothing."""
    bound = _fields.get()
    if bound is not None:
        bound.update(fields)
