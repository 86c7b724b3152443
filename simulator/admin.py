"""HTTP endpoints below /admin.

Tests use them to set faults (errors that the simulator causes on purpose), and to read the ledger (the record
of all requests).
"""

import msgspec

from batchwright.simulator.exchange import HttpRequest, HttpResponse, error_response
from batchwright.simulator.faults import Fault, Faults
from batchwright.simulator.ledger import Ledger

_fault_decoder = msgspec.json.Decoder(Fault)


def handle_admin(request: HttpRequest, ledger: Ledger, faults: Faults) -> HttpResponse:
    parts = request.path.removeprefix("/admin/").split("/")
    match request.method, parts:
        case "GET", ["ledger"]:
            return _report(request, ledger)
        case "DELETE", ["ledger"]:
            ledger.reset()
            return _json({"reset": True})
        case "GET", ["faults"]:
            return _json({"faults": faults.active()})
        case "POST", ["faults"]:
            return _add(request.body, faults)
        case "DELETE", ["faults"]:
            return _json({"ended": faults.clear()})
        case "DELETE", ["faults", fault_id]:
            ended = faults.clear(fault_id)
            return (
                _json({"ended": ended}) if ended else error_response(404, f"There is no fault {fault_id!r}.")
            )
        case _:
            return error_response(
                404, f"There is no {request.method} {request.path}; see docs/reference/simulator.md."
            )


def _report(request: HttpRequest, ledger: Ledger) -> HttpResponse:
    least = request.parameter("min_requests") or "1"
    if not least.isdigit():
        return error_response(400, f"min_requests is {least!r}; it may be a whole number.")
    report = ledger.report(
        model=request.parameter("model"),
        min_requests=int(least),
        entries=request.parameter("entries") != "false",
    )
    return _json(report)


def _add(body: bytes, faults: Faults) -> HttpResponse:
    try:
        fault = _fault_decoder.decode(body)
    except msgspec.DecodeError as error:
        return error_response(400, f"This is not a fault: {error}")
    return _json(faults.add(fault))


def _json(value: object) -> HttpResponse:
    return HttpResponse(200, msgspec.json.encode(value))
