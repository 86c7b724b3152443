"""Calls with `service_tier: "flex"`: the connection stays open until the backend has answered.

The call becomes a line of a batch, and waits like any other line until it is sent. If the connection breaks,
the client can get the answer by sending the request again with the same Idempotency-Key.
"""

from fastapi import Request, Response

from batchwright.api.auth.caller import caller_of, tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import RETRY_AFTER_SECONDS, ApiError, conflict, error_response
from batchwright.api.routes.calls.call_body import Fields, sent_key
from batchwright.api.services.calls.acceptance import CallRequest, Calls
from batchwright.api.services.calls.held_calls import HeldCalls, late_error
from batchwright.contracts.calls import Call
from batchwright.contracts.errors import LineCode
from batchwright.database.tables.calls import CallKey
from batchwright.rules.calls.call_results import error_of, read_result

FLEX = "flex"
_STATUSES: dict[str, int] = {
    LineCode.POLICY_REJECTED: 403,
    LineCode.MODEL_NOT_FOUND: 404,
    LineCode.INVALID_REQUEST: 400,
}


class FlexCalls:
    """A service that submits flex calls: requests without a batch, whose answers may take minutes. The
    client's connection stays open until its call has ended.
    """

    def __init__(self, deps: ApiDependencies, calls: Calls) -> None:
        self._settings, self._calls, self._held = deps.settings, calls, HeldCalls(deps)
        self._stored = deps.database.calls

    async def answer(self, request: Request, call: CallRequest, fields: Fields) -> Call | None:
        """Submit a call, wait until it has ended, and return it. Return None if the client has disconnected.

        If the wait ends before the call has ended:

        - A call with an idempotency key continues. If the client sends the request again with the same key,
          the client gets the answer.
        - A call without a key is cancelled.

        Args:
            call: the call to submit.
            fields: the fields of the request's body. A digest of them is stored with the idempotency key.

        Raises:
            ApiError: as in `Calls.submit`. Too many clients wait for answers, or the call has not ended
                within 15 minutes (429). The process is stopping, or the call no longer exists (503).
        """
        tenant, caller = tenant_of(request, self._settings), caller_of(request, self._settings)
        key = await sent_key(request, fields)
        with self._held.connections.place(tenant):
            id, has_ended = (await self._calls.submit(call, tenant, caller, key)).id, False
            try:
                has_ended = await self._held.wait(CallKey(tenant, id), request.receive)
            finally:
                if not has_ended and key is None:
                    await self._calls.cancel(tenant, id)
            if not has_ended:
                return None
            ended = await self._stored.get(tenant, id)
        if ended is None:
            message = "The call no longer exists. Send the same request again."
            raise ApiError(503, message, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
        return ended


def disconnected_response() -> Response:
    """Return a response with status 499. The client has disconnected, so only the access log shows it."""
    return Response(status_code=499)


def failure_response(call: Call) -> Response:
    """Return the error response for a call that has ended without a successful answer of a backend."""
    response = None if call.answer is None else read_result(call.answer).response
    if response is not None:
        return Response(bytes(response.body), response.status_code, media_type="application/json")
    error = error_of(call)
    match error.code:
        case LineCode.BATCH_EXPIRED:
            return error_response(late_error())
        case "cancelled" | LineCode.BATCH_CANCELLED:
            return error_response(conflict("The call was cancelled.", code="cancelled"))
        case code:
            return error_response(ApiError(_STATUSES.get(code, 500), error.message, code=code))
