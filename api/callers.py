"""Who creates a batch, as far as its requests are to show it: headers that settings let through."""

from fastapi import Request

from api.errors import ApiError, invalid_value
from api.tenants import key_id_of
from batchwright.contracts.batch import Caller
from batchwright.rules.passed_headers import check_value
from batchwright.settings import Settings
from batchwright.telemetry.secrets import Redactor

_REDACTOR = Redactor()


def caller_of(request: Request, settings: Settings) -> Caller:
    """Raises ApiError for the first header that cannot be passed on."""
    sent = {name: request.headers.getlist(name) for name in settings.passed_headers}
    headers = {name: ", ".join(values) for name, values in sent.items() if values}
    for name, value in headers.items():
        _check(name, value)
    return Caller(key_id=key_id_of(request), headers=headers)


def _check(name: str, value: str) -> None:
    """The value is in no message: it may be a secret that was sent in the wrong place."""
    try:
        check_value(value)
    except ValueError as error:
        raise _wrong(name, str(error)) from None
    if _REDACTOR(value) != value:
        raise _wrong(name, "it looks like a credential, which would be kept with the batch")


def _wrong(name: str, problem: str) -> ApiError:
    return invalid_value(name, f"The header '{name}' cannot be passed on to backends: {problem}.")
