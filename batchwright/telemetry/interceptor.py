"""Between Temporal and our code: the trace travels with a workflow, activities say what they work on.

The workflow's part only hands a header on; it makes no spans, so that replay makes none either.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from pydantic import TypeAdapter, ValidationError
from temporalio import activity, client, worker, workflow
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.execution import SliceRequest
from batchwright.contracts.finalization import FinalizeRequest
from batchwright.contracts.lifecycle import EndRequest
from batchwright.telemetry import tracing
from batchwright.telemetry.context import Fact, about, learn

_HEADER = "_tracer-data"  # as OpenTelemetry's interceptors of all SDKs call it
_CARRIER = TypeAdapter(dict[str, str])


class TelemetryInterceptor(client.Interceptor, worker.Interceptor):
    """Of a client, and so of every worker made with it."""

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:
        return _Starting(next)

    def intercept_activity(
        self, next: worker.ActivityInboundInterceptor
    ) -> worker.ActivityInboundInterceptor:
        return _Activity(next)

    def workflow_interceptor_class(
        self, input: worker.WorkflowInterceptorClassInput
    ) -> type[worker.WorkflowInboundInterceptor] | None:
        return _Workflow


class _Starting(client.OutboundInterceptor):
    async def start_workflow(self, input: client.StartWorkflowInput) -> client.WorkflowHandle[object, object]:
        learn(**facts_of(input.args))
        spans = tracing.spans()
        if spans is not None and (carrier := spans.carrier()):
            spans.note(**_file_of(input.args))
            [payload] = PayloadConverter.default.to_payloads([carrier])
            input.headers = {**input.headers, _HEADER: payload}
        return await super().start_workflow(input)


class _Activity(worker.ActivityInboundInterceptor):
    async def execute_activity(self, input: worker.ExecuteActivityInput) -> object:
        known = facts_of(input.args)
        spans = tracing.spans()
        with about(**known):
            if spans is None or "batch_id" not in known:
                return await super().execute_activity(input)
            name, batch_id = activity.info().activity_type, str(known["batch_id"])
            with spans.activity(name, batch_id, _carrier_of(input.headers)) as span:
                spans.note(**_file_of(input.args))
                try:
                    return await super().execute_activity(input)
                except ApplicationError as error:
                    if error.category is not ApplicationErrorCategory.BENIGN:
                        spans.failed(error, span)
                    else:
                        spans.given_back(error.type or "")
                    raise
                except Exception as error:
                    spans.failed(error, span)
                    raise


def facts_of(arguments: Sequence[object]) -> dict[str, Fact]:
    """What an activity works on, by its argument."""
    match arguments:
        case [BatchOrder() as order]:
            return _facts_of_order(order)
        case [FinalizeRequest() | EndRequest() as request]:
            return _facts_of_order(request.order)
        case [SliceRequest() as request]:
            return {
                "batch_id": request.batch_id,
                "tenant": request.tenant,
                "model": request.model,
                "slice": request.number,
                "attempt": activity.info().attempt,
                **({"generation": request.generation} if request.generation else {}),
            }
        case _:
            return {}


def _facts_of_order(order: BatchOrder) -> dict[str, Fact]:
    return {"batch_id": order.batch_id, "tenant": order.tenant}


def _file_of(arguments: Sequence[object]) -> dict[str, Fact]:
    match arguments:
        case [BatchOrder() as order] | [FinalizeRequest(order=order) | EndRequest(order=order)]:
            return {"file_id": order.input_file_id}
        case _:
            return {}


def _carrier_of(headers: Mapping[str, Payload]) -> dict[str, str]:
    """Empty too where somebody's header cannot be read: a trace is not worth a batch."""
    if _HEADER not in headers:
        return {}
    try:
        return _CARRIER.validate_json(headers[_HEADER].data)
    except ValidationError:
        return {}


class _Workflow(worker.WorkflowInboundInterceptor):
    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        super().init(_HandingOn(outbound))


class _HandingOn(worker.WorkflowOutboundInterceptor):
    """Everything that a workflow starts gets the header that the workflow was started with."""

    def start_activity(self, input: worker.StartActivityInput) -> workflow.ActivityHandle[object]:
        input.headers = _with_own(input.headers)
        return super().start_activity(input)

    async def start_child_workflow(
        self, input: worker.StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[object, object]:
        input.headers = _with_own(input.headers)
        return await super().start_child_workflow(input)

    def continue_as_new(self, input: worker.ContinueAsNewInput) -> NoReturn:
        input.headers = _with_own(input.headers)
        super().continue_as_new(input)


def _with_own(headers: Mapping[str, Payload]) -> Mapping[str, Payload]:
    own = workflow.info().headers.get(_HEADER)
    return headers if own is None else {**headers, _HEADER: own}
