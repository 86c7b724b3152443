"""Rules for the headers of requests to backends.

Some of these headers are configured in the model registry. Others were sent by the client that created the
batch, and are forwarded to backends. A header in the registry must not occur twice, and must not replace a
header that Batchwright itself sends.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from batchwright.contracts.model_registry.backend_config import HEADER_SETTINGS, BackendConfig
from batchwright.contracts.model_registry.backend_job_config import JobConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig

# Reserved headers, in addition to `OWN_HEADERS`, which a registry must not contain at all.
_TRACE_HEADERS = frozenset({"traceparent", "tracestate"})
_BODY_HEADERS = frozenset({"content-encoding", "content-language", "content-range", "range"})


# --- headers of the registry


class HeaderConflict(NamedTuple):
    """A header in a model's configuration that occurs twice, or that Batchwright itself sends.

    Attributes:
        field: name of the setting with the header, such as `headers`.
        header: name of the header.
        message: describes the conflict and the remedy.
        backend: index of the header's backend in the model; None for the model's `jobs.callback_header`.
    """

    field: str
    header: str
    message: str
    backend: int | None = None


def find_conflict(model: str, config: ModelConfig, dispatch_header: str) -> HeaderConflict | None:
    """Return the first header of a model that occurs twice, or that Batchwright itself sends.

    Return None if the model has no such header.

    Args:
        model: name of the model, for the message.
        config: configuration of the model.
        dispatch_header: name of the header that Batchwright sends to each backend whose
            `send_dispatch_header` is on.
    """
    callback = config.jobs.callback_header if config.kind == "callback" else ""
    for number, backend in enumerate(config.backends):
        subject = f"of the backend {backend.url} of {model!r}"
        if found := _first_conflict(backend, subject, dispatch_header, callback):
            return found._replace(backend=number)
    if reserved := callback and reserved_for(
        callback, _used_dispatch_header(config.backends, dispatch_header)
    ):
        message = f"the callback_header {callback!r} of {model!r} would replace {reserved}: choose another"
        return HeaderConflict("callback_header", callback, message)
    return None


class ResolvedHeaders(NamedTuple):
    """A model without conflicting headers, and a message for each conflict. See `resolve_conflicts`."""

    config: ModelConfig
    problems: list[str]


def resolve_conflicts(model: str, config: ModelConfig, dispatch_header: str) -> ResolvedHeaders:
    """Return the model without its conflicting headers, and one message for each conflict.

    A header conflicts if it occurs twice, or if Batchwright sends it itself. A model that is already
    registered can get a conflict when the setting `dispatch_header` changes. A conflicting
    `jobs.callback_header` gets its default value; all other conflicting headers are removed.

    Args:
        model: name of the model, for the messages.
        dispatch_header: name of the header that Batchwright sends to each backend whose
            `send_dispatch_header` is on.
    """
    problems: list[str] = []
    while found := find_conflict(model, config, dispatch_header):
        if found.backend is None:
            default: str = JobConfig.model_fields["callback_header"].default
            if found.header == default:  # no name is left, because the dispatch header has the default name
                return ResolvedHeaders(config, [*problems, found.message])
            config = config.model_copy(
                update={"jobs": config.jobs.model_copy(update={"callback_header": default})}
            )
            problems.append(f"{found.message}; until then it is {default}")
            continue
        backends = [*config.backends]
        backend = backends[found.backend]
        headers = getattr(backend, found.field)
        kept = {name: value for name, value in headers.items() if name != found.header}
        backends[found.backend] = backend.model_copy(update={found.field: kept})
        config = config.model_copy(update={"backends": backends})
        problems.append(f"{found.message}; until then it is not sent")
    return ResolvedHeaders(config, problems)


def conflict_message(backend: BackendConfig, subject: str, dispatch_header: str) -> str:
    """Return a message about the first header that the backend cannot use; empty if there is none.

    A header cannot be used in these cases:

    - `headers` or `batch_headers` contains its name twice. Upper and lower case do not matter.
    - Batchwright itself sends a header with this name.

    Args:
        backend: configuration of the backend.
        subject: words that name the backend in the message, such as "of the gateway".
        dispatch_header: name of the header that Batchwright sends to each backend whose
            `send_dispatch_header` is on.
    """
    found = _first_conflict(backend, subject, dispatch_header, "")
    return found.message if found else ""


def _first_conflict(
    backend: BackendConfig, subject: str, dispatch_header: str, callback_header: str
) -> HeaderConflict | None:
    """Return the first header that the backend cannot use; None if there is none.

    The field `backend` of the result is not set.

    Args:
        backend: configuration of the backend.
        subject: words that name the backend in the message.
        dispatch_header: name of the header that Batchwright sends to each backend whose
            `send_dispatch_header` is on.
        callback_header: name of the header with the URL that backends call; empty if the model uses no
            callbacks.
    """
    used_dispatch_header = _used_dispatch_header([backend], dispatch_header)
    for field in HEADER_SETTINGS:
        seen: dict[str, str] = {}
        for name in getattr(backend, field):
            lower = name.lower()
            if lower in seen:
                also = f"is also given as {seen[lower]!r}: remove one of them"
                return HeaderConflict(field, name, f"the header {name!r} {subject} {also}")
            seen[lower] = name
            replaces = f"the header {name!r} {subject} would replace"
            if lower == callback_header.lower():
                reserved = "the URL to call, which is sent as jobs.callback_header: rename one of the two"
                return HeaderConflict(field, name, f"{replaces} {reserved}")
            if reserved := reserved_for(name, used_dispatch_header):
                return HeaderConflict(field, name, f"{replaces} {reserved}: remove it")
    return None


def _used_dispatch_header(backends: Iterable[BackendConfig], dispatch_header: str) -> str:
    return dispatch_header.lower() if any(backend.send_dispatch_header for backend in backends) else ""


def reserved_for(name: str, dispatch_header: str = "") -> str:
    """Return a description of what Batchwright itself sends in a header, as a part of an error message.

    Example: "the trace context of its request". The result is empty if Batchwright does not send the header.

    Args:
        name: name of the header.
        dispatch_header: lower-case name of the header that Batchwright sends to each backend whose
            `send_dispatch_header` is on; empty if no backend has this setting on.
    """
    lower = name.lower()
    if lower in _TRACE_HEADERS:
        return "the trace context of its request"
    if lower in _BODY_HEADERS:
        return "the description of the body, which is sent plain and complete"
    if lower == dispatch_header:
        return "BATCHWRIGHT_DISPATCH_HEADER, which marks requests to it (send_dispatch_header)"
    return ""


# --- headers passed on from a batch's creation


MAX_PASSED_HEADERS = 8
MAX_PASSED_CHARACTERS = 256  # limit for one value, because every slice has a copy of the headers
_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_VALUE = re.compile(r"[\x20-\x7e]*")
# Words in header names, between hyphens or underscores, that indicate credentials.
_CREDENTIAL_WORDS = frozenset(
    {
        *("auth", "authentication", "authorization", "bearer", "cookie", "cookie2", "credential"),
        *("credentials", "csrf", "jwt", "passphrase", "passwd", "password", "secret", "session"),
        *("signature", "token", "xsrf"),
    }
)
_KEY_WORDS = ("key", "keys")  # words that also count at the end of another word, such as apikey
_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("host", "expect", "via", "max-forwards", "http2-settings"),
    }
)
_OWN_REQUEST_HEADERS = frozenset(
    {
        *("accept", "accept-encoding", "content-encoding", "content-length", "content-type"),
        *("range", "x-request-id", "traceparent", "tracestate", "baggage"),
    }
)


def parse_passed_names(text: str) -> tuple[str, ...]:
    """Return the names of headers in a comma-separated list, in lower case and without repetitions.

    The values of these headers are forwarded from the client to backends.

    Raises:
        ValueError: there are too many names, or a header must not be forwarded, for example because it
            carries credentials.
    """
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    if len(names) > MAX_PASSED_HEADERS:
        raise ValueError(f"it may name at most {MAX_PASSED_HEADERS} headers, not {len(names)}")
    for name in names:
        if problem := _name_problem(name):
            raise ValueError(f"{name!r} cannot be passed on: {problem}")
    return names


def check_passed_value(value: str) -> None:
    """Check that the value of a header may be forwarded to backends.

    Raises:
        ValueError: the value is too long or not printable ASCII. The message does not contain the value.
    """
    if len(value) > MAX_PASSED_CHARACTERS:
        raise ValueError(f"it has {len(value)} characters; at most {MAX_PASSED_CHARACTERS} may be passed on")
    if _VALUE.fullmatch(value) is None:
        raise ValueError("it has characters that are not printable ASCII")


def currently_passed(headers: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the headers of a batch that the settings still allow to forward to backends.

    The settings may have changed after the client created the batch and sent the headers.

    Args:
        headers: the stored headers of the batch, by name in lower case.
        names: names of the headers that the settings allow now, in lower case.
    """
    allowed = set(names)
    return {name: value for name, value in headers.items() if name in allowed}


def _name_problem(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        return "it is not a header name of 1 to 64 characters"
    parts = re.split(r"[-_]", name)
    if not _CREDENTIAL_WORDS.isdisjoint(parts) or any(part.endswith(_KEY_WORDS) for part in parts):
        return "it carries credentials; set the keys of backends in the registry"
    if name in _HOP_BY_HOP or name.startswith("proxy-"):
        return "it is a header of a single connection"
    return "Batchwright sets it itself" if name in _OWN_REQUEST_HEADERS else ""
