"""Headers that a registry adds to requests: none may stand for one that Batchwright sends, or come twice."""

from collections.abc import Iterable
from typing import NamedTuple

from batchwright.contracts.jobs import JobConfig
from batchwright.contracts.registry import BackendConfig, ModelConfig

# Beside those that no registry may hold at all: `OWN_HEADERS`.
_TRACES = frozenset({"traceparent", "tracestate"})
_OF_BODIES = frozenset({"content-encoding", "content-language", "content-range", "range"})


class Clash(NamedTuple):
    """`backend` is its place in the model, from 0; None: the clash is in `jobs.callback_header`."""

    backend: int | None
    header: str
    message: str


def clash(model: str, config: ModelConfig, dispatch_header: str) -> Clash | None:
    """The first, with the words that name it and its remedy."""
    callback = config.jobs.callback_header if config.kind == "callback" else ""
    for number, backend in enumerate(config.backends):
        whose = f"of the backend {backend.url} of {model!r}"
        if found := _first(backend, whose, dispatch_header, callback):
            return Clash(number, *found)
    if said := callback and stands_for(callback, _marks(config.backends, dispatch_header)):
        message = f"the callback_header {callback!r} of {model!r} would stand for {said}: choose another"
        return Clash(None, callback, message)
    return None


class Cleaned(NamedTuple):
    """A model as its requests are made, and what of its registration is not heeded."""

    config: ModelConfig
    problems: list[str]


def cleaned(model: str, config: ModelConfig, dispatch_header: str) -> Cleaned:
    """Of what was registered before clashes were refused, or with another dispatch header: ours wins."""
    problems: list[str] = []
    while found := clash(model, config, dispatch_header):
        if found.backend is None:
            usual: str = JobConfig.model_fields["callback_header"].default
            if found.header == usual:  # what marks our traffic has that name: nothing is left to take
                return Cleaned(config, [*problems, found.message])
            config = config.model_copy(
                update={"jobs": config.jobs.model_copy(update={"callback_header": usual})}
            )
            problems.append(f"{found.message}; until then it is {usual}")
            continue
        backends = [*config.backends]
        backends[found.backend] = _without(backends[found.backend], found.header)
        config = config.model_copy(update={"backends": backends})
        problems.append(f"{found.message}; until then it is not sent")
    return Cleaned(config, problems)


def _without(backend: BackendConfig, header: str) -> BackendConfig:
    kept = {name: value for name, value in backend.headers.items() if name != header}
    return backend.model_copy(update={"headers": kept})


def problem(backend: BackendConfig, whose: str, dispatch_header: str) -> str:
    """Of its `headers`; empty: there is none."""
    found = _first(backend, whose, dispatch_header, "")
    return found.message if found else ""


class _Found(NamedTuple):
    header: str
    message: str


def _first(backend: BackendConfig, whose: str, dispatch_header: str, callback_header: str) -> _Found | None:
    """`callback_header` is empty where backends do not call."""
    seen: dict[str, str] = {}
    marks = _marks([backend], dispatch_header)
    for name in backend.headers:
        lower = name.lower()
        if lower in seen:
            message = f"the header {name!r} {whose} is there as {seen[lower]!r} too: take one of them away"
            return _Found(name, message)
        seen[lower] = name
        if lower == callback_header.lower():
            said = "the URL to call, which is sent as jobs.callback_header: rename one of the two"
            return _Found(name, f"the header {name!r} {whose} would stand for {said}")
        if said := stands_for(name, marks):
            return _Found(name, f"the header {name!r} {whose} would stand for {said}: take it away")
    return None


def _marks(backends: Iterable[BackendConfig], dispatch_header: str) -> str:
    return dispatch_header.lower() if any(backend.dispatched for backend in backends) else ""


def stands_for(name: str, marks: str = "") -> str:
    """What Batchwright sends under this name; empty: nothing. `marks`: the header that marks it."""
    lower = name.lower()
    if lower in _TRACES:
        return "the trace of its request"
    if lower in _OF_BODIES:
        return "what the body is, which is plain and whole"
    return "BATCHWRIGHT_DISPATCH_HEADER, which marks requests to it (dispatched)" if lower == marks else ""
