"""`/admin/faults` and `/admin/ledger`: what a test tells the simulator, and asks it."""

import msgspec

from simulator import shapes
from simulator.exchange import Answer, Request
from simulator.faults import Fault, Faults
from simulator.ledger import Ledger

_fault_decoder = msgspec.json.Decoder(Fault)


def answer(request: Request, ledger: Ledger, faults: Faults) -> Answer:
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
            return _json({"ended": ended}) if ended else _wrong(404, f"There is no fault {fault_id!r}.")
        case _:
            return _wrong(
                404, f"There is no {request.method} {request.path}; see docs/reference/simulator.md."
            )


def _report(request: Request, ledger: Ledger) -> Answer:
    least = request.parameter("min_asked") or "1"
    if not least.isdigit():
        return _wrong(400, f"min_asked is {least!r}; it may be a whole number.")
    report = ledger.report(
        model=request.parameter("model"),
        min_asked=int(least),
        entries=request.parameter("entries") != "false",
    )
    return _json(report)


def _add(body: bytes, faults: Faults) -> Answer:
    try:
        fault = _fault_decoder.decode(body)
    except msgspec.DecodeError as error:
        return _wrong(400, f"This is not a fault: {error}")
    return _json(faults.add(fault))


def _json(value: object) -> Answer:
    return Answer(200, msgspec.json.encode(value))


def _wrong(status: int, message: str) -> Answer:
    error = shapes.ErrorDetail(message, "invalid_request_error")
    return Answer(status, msgspec.json.encode(shapes.Error(error)))
