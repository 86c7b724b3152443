"""Translates errors of Temporal to exceptions whose messages name the address and the remedy."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from temporalio.service import RPCError, RPCStatusCode

from batchwright.settings import Settings

# Patterns in the SDK's connection errors, and explanations; the SDK has no error classes for these.
_MEANINGS = (
    ("UnknownIssuer", "no trusted authority signed its certificate: set BATCHWRIGHT_TEMPORAL_TLS_CA_FILE"),
    ("NotValidForName", "its certificate is for another name: set BATCHWRIGHT_TEMPORAL_TLS_SERVER_NAME"),
    (r"InvalidCertificate\(Expired", "its certificate has expired, or this machine's clock is wrong"),
    (
        r"InvalidCertificate\(NotValidYet",
        "its certificate is not valid yet, or this machine's clock is wrong",
    ),
    (
        "InvalidMessage",
        "it does not speak TLS: set BATCHWRIGHT_TEMPORAL_TLS=false, and no certificates or keys",
    ),
    ("dns error", "its host name cannot be resolved"),
    ("ConnectionRefused", "the connection was refused"),
)
_REFUSED = re.compile(r"code: (Unauthenticated|PermissionDenied)")
_UNKNOWN_OUTCOMES = (
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.UNKNOWN,
    RPCStatusCode.INTERNAL,
)
_CLOSED = re.compile(r"call error after connection: .*(transport error|operation was canceled)")


class TemporalUnavailable(Exception):
    """Raised if Temporal does not answer, or refuses the call. The message names the address."""


class TemporalOutcomeUnknown(TemporalUnavailable):
    """Raised if a call failed, but Temporal has possibly executed the call, for example after a timeout."""


class TemporalNotSetUp(TemporalUnavailable):
    """Raised if Temporal answers, but its namespace is not ready for batches. The message names the remedy.

    The namespace or a search attribute is missing, or a search attribute has the wrong type. Search
    attributes are the fields by which workflows are found in Temporal.
    """


def from_connect_error(settings: Settings, error: RuntimeError) -> TemporalUnavailable:
    """Convert the error of a failed connection attempt to an exception for users, and return it."""
    text = str(error)
    if _REFUSED.search(text):
        return TemporalUnavailable(
            f"Temporal at {settings.temporal_address} refuses access: {_check(settings)}."
        )
    return TemporalUnavailable(
        f"Temporal does not answer at {settings.temporal_address} (BATCHWRIGHT_TEMPORAL_ADDRESS): "
        f"{_meaning(settings, text)}."
    )


def from_rpc_error(settings: Settings, error: RPCError) -> TemporalUnavailable:
    """Convert the error of a failed call to Temporal to an exception for users, and return it."""
    where = f"Temporal at {settings.temporal_address}"
    if error.status in (RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED):
        return TemporalUnavailable(f"{where} refuses access: {_check(settings)}.")
    if is_unknown_namespace(error):
        return TemporalNotSetUp(
            f"{where} has no namespace {settings.temporal_namespace!r}: run `batchwright setup temporal`, "
            "or set BATCHWRIGHT_TEMPORAL_NAMESPACE."
        )
    kind = TemporalOutcomeUnknown if error.status in _UNKNOWN_OUTCOMES else TemporalUnavailable
    return kind(f"{where} refused or did not answer: {error.message}")


def is_unknown_namespace(error: RPCError) -> bool:
    """Return True if the error means that the namespace does not exist.

    The error's message is checked, because a call for an unknown workflow has the same status NOT_FOUND.
    """
    return error.status is RPCStatusCode.NOT_FOUND and "namespace" in error.message.lower()


@asynccontextmanager
async def translated_errors(settings: Settings, missing: Exception) -> AsyncGenerator[None]:
    """Context manager that replaces Temporal's own errors.

    - If Temporal does not find the object of a call in the `with` block, `missing` is raised.
    - If the whole namespace does not exist, TemporalNotSetUp is raised.
    - If a call or the connection fails for another reason, TemporalUnavailable is raised.

    Args:
        missing: the exception to raise if the object is not found, such as ScheduleMissing.
    """
    try:
        yield
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and not is_unknown_namespace(error):
            raise missing from error
        raise from_rpc_error(settings, error) from error
    except RuntimeError as error:  # a lazy client raises this when it cannot connect
        raise from_connect_error(settings, error) from error


def _meaning(settings: Settings, text: str) -> str:
    for pattern, meaning in _MEANINGS:
        if re.search(pattern, text):
            return meaning
    if _CLOSED.search(text):
        return f"it closed the connection; it may require {_wanted(settings)}"
    return text.removeprefix("Failed client connect: ").rstrip(".")


def _wanted(settings: Settings) -> str:
    names = ("temporal_tls_ca_file", "temporal_api_key", "temporal_api_key_file", "temporal_tls_server_name")
    if settings.temporal_tls_cert_file:
        return "a client certificate other than that of BATCHWRIGHT_TEMPORAL_TLS_CERT_FILE"
    if settings.temporal_tls or any(getattr(settings, name) for name in names):
        return "a client certificate (BATCHWRIGHT_TEMPORAL_TLS_CERT_FILE)"
    return "TLS (BATCHWRIGHT_TEMPORAL_TLS=true)"


def _check(settings: Settings) -> str:
    names = ("temporal_api_key", "temporal_api_key_file", "temporal_tls_cert_file")
    given = " and ".join(f"BATCHWRIGHT_{name.upper()}" for name in names if getattr(settings, name))
    return f"check {given}" if given else "set BATCHWRIGHT_TEMPORAL_API_KEY_FILE, or a client certificate"
