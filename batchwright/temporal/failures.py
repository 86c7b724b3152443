"""Convert exceptions into failures that Temporal shows in full at a pending activity.

Temporal's server replaces a failure of more than 4 KiB at a pending activity by "Failure exceeds size
limit.". An encrypted message is then lost. So messages and tracebacks are shortened first. The log of the
process has the whole traceback.
"""

from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, PayloadConverter

_MESSAGE_CHARACTERS = 600
_TRACEBACK_CHARACTERS = 400  # of its end, which names the line that raised the exception


class ShortFailureConverter(DefaultFailureConverter):
    """Converter of failures with short messages and tracebacks.

    The failure of an activity has at most two causes.
    """

    def to_failure(
        self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure
    ) -> None:
        super().to_failure(exception, payload_converter, failure)
        if len(failure.message) > _MESSAGE_CHARACTERS:
            failure.message = f"{failure.message[: _MESSAGE_CHARACTERS - 3]}..."
        failure.stack_trace = failure.stack_trace[-_TRACEBACK_CHARACTERS:]
        if failure.HasField("application_failure_info") and failure.cause.cause.HasField("cause"):
            failure.cause.cause.ClearField("cause")


class ShortEncodedFailureConverter(ShortFailureConverter):
    """Converter of short failures for a payload codec that encrypts.

    Messages and tracebacks become encoded attributes, which the codec encrypts.
    """

    def to_failure(
        self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure
    ) -> None:
        super().to_failure(exception, payload_converter, failure)
        attributes = {"message": failure.message, "stack_trace": failure.stack_trace}
        failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([attributes])[0])
        failure.message, failure.stack_trace = "Encoded failure", ""
