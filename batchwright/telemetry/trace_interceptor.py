"""Temporal interceptors that create trace spans, and add log fields to activities.

A workflow only copies its trace header to the activities and workflows that it starts. Workflows create no
trace spans, because each replay of a workflow would create the spans again.
"""

from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter, ValidationError
from temporalio import activity, client, worker, workflow
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.execution import SliceRequest
from batchwright.contracts.temporal_payloads.finalization import EndRequest, FinalizeRequest
from batchwright.telemetry import tracing
from batchwright.telemetry.context import FieldValue, add_fields, bind_fields

_HEADER = "_tracer-data"  # the header name of OpenTelemetry interceptors in all Temporal SDKs
_CARRIER = TypeAdapter(dict[str, str])


class TelemetryInterceptor(client.Interceptor, worker.Interceptor):
    """An interceptor that adds log fields and trace spans to calls of a Temporal client and its workers."""

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:
        return _ClientOutbound(next)

    def intercept_activity(
        self, next: worker.ActivityInboundInterceptor
    ) -> worker.ActivityInboundInterceptor:
        return _ActivityInbound(next)

    def workflow_interceptor_class(
        self, input: worker.WorkflowInterceptorClassInput
    ) -> type[worker.WorkflowInboundInterceptor] | None:
        return _WorkflowInbound


class _ClientOutbound(client.OutboundInterceptor):
    async def start_workflow(self, input: client.StartWorkflowInput) -> client.WorkflowHandle[object, object]:
        add_fields(**fields_of(input.args))
        spans = tracing.spans()
        if spans is not None and (carrier := spans.carrier()):
            spans.set_attributes(**_file_field(input.args))
            [payload] = PayloadConverter.default.to_payloads([carrier])
            input.headers = {**input.headers, _HEADER: payload}
        return await super().start_workflow(input)


class _ActivityInbound(worker.ActivityInboundInterceptor):
    async def execute_activity(self, input: worker.ExecuteActivityInput) -> object:
        fields = fields_of(input.args)
        spans = tracing.spans()
        with bind_fields(**fields):
            if spans is None or "batch_id" not in fields:
                return await super().execute_activity(input)
            name, batch_id = activity.info().activity_type, str(fields["batch_id"])
            with spans.activity(name, batch_id, _carrier_of(input.headers)) as span:
                spans.set_attributes(**_file_field(input.args))
                try:
                    return await super().execute_activity(input)
                except ApplicationError as error:
                    if error.category is not ApplicationErrorCategory.BENIGN:
                        spans.record_error(error, span)
                    else:
                        spans.record_reenqueue(error.type or "")
                    raise
                except Exception as error:
                    spans.record_error(error, span)
                    raise


class _WorkflowInbound(worker.WorkflowInboundInterceptor):
    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        super().init(_WorkflowOutbound(outbound))


class _WorkflowOutbound(worker.WorkflowOutboundInterceptor):
    """An interceptor that copies a workflow's trace header to its activities and its child workflows."""

    def start_activity(self, input: worker.StartActivityInput) -> workflow.ActivityHandle[object]:
        input.headers = _with_trace_header(input.headers)
        return super().start_activity(input)

    async def start_child_workflow(
        self, input: worker.StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[object, object]:
        input.headers = _with_trace_header(input.headers)
        return await super().start_child_workflow(input)


def fields_of(arguments: Sequence[object]) -> dict[str, FieldValue]:
    """Return the log fields, such as the batch id, from the arguments of an activity or workflow.

    The result is empty if the arguments have an unknown type.
    """
    match arguments:
        case [BatchOrder() as order]:
            return _order_fields(order)
        case [FinalizeRequest() | EndRequest() as request]:
            return _order_fields(request.order)
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


def _order_fields(order: BatchOrder) -> dict[str, FieldValue]:
    return {"batch_id": order.batch_id, "tenant": order.tenant}


def _file_field(arguments: Sequence[object]) -> dict[str, FieldValue]:
    match arguments:
        case [BatchOrder() as order] | [FinalizeRequest(order=order) | EndRequest(order=order)]:
            return {"file_id": order.input_file_id}
        case _:
            return {}


def _carrier_of(headers: Mapping[str, Payload]) -> dict[str, str]:
    """Return the trace headers that an activity received; empty if there are no valid headers."""
    if _HEADER not in headers:
        return {}
    try:
        return _CARRIER.validate_json(headers[_HEADER].data)
    except ValidationError:
        return {}


def _with_trace_header(headers: Mapping[str, Payload]) -> Mapping[str, Payload]:
    own = workflow.info().headers.get(_HEADER)
    return headers if own is None else {**headers, _HEADER: own}
