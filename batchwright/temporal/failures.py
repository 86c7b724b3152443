"""Convert exceptions to short failures, so that Temporal shows them in full at a pending activity.

If a failure has more than 4 KiB, Temporal's server shows only "Failure exceeds size limit." at the pending
activity. An encrypted message of such a failure is lost. Therefore, messages and tracebacks are shortened.
The log of the process has the whole traceback.
"""

from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, PayloadConverter

_MESSAGE_CHARACTERS = 600
_TRACEBACK_CHARACTERS = 400  # of its end, which names the line that raised the exception


class ShortFailureConverter(DefaultFailureConverter):
    """Converter of failures that shortens messages and tracebacks, to keep each failure below 4 KiB.

    For the same reason, only the first two causes of an activity's exception are kept.
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
    """Converter of short failures, for use with a payload codec that encrypts.

    It moves the message and the traceback to the encoded attributes, because the codec encrypts only these.
    """

    def to_failure(
        self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure
    ) -> None:
        super().to_failure(exception, payload_converter, failure)
        attributes = {"message": failure.message, "stack_trace": failure.stack_trace}
        failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([attributes])[0])
        failure.message, failure.stack_trace = "Encoded failure", ""
