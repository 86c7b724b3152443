"""What is being worked on: facts that every log entry and span made meanwhile carries."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

Fact = str | int
_facts: ContextVar[dict[str, Fact] | None] = ContextVar("facts", default=None)
_NONE: Mapping[str, Fact] = {}


def facts() -> Mapping[str, Fact]:
    """Of the innermost `about`, with those around it."""
    return _facts.get() or _NONE


@contextmanager
def about(**known: Fact) -> Generator[None]:
    """Binds facts for the block, and for the tasks that it starts."""
    token = _facts.set({**facts(), **known})
    try:
        yield
    finally:
        _facts.reset(token)


def learn(**found: Fact) -> None:
    """Adds to the innermost `about`; nothing outside of one."""
    current = _facts.get()
    if current is not None:
        current.update(found)
