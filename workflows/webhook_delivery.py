"""The workflow that delivers an event to one webhook endpoint, with retries for 72 h, or 5 min for a test."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.temporal_payloads.webhooks import (
        WORKFLOW,
        AttemptRequest,
        AttemptResult,
        DeliveryOrder,
        DeliveryResult,
        WebhookActivities,
    )
    from batchwright.rules.webhooks.webhook_retries import (
        RETRY_PERIOD,
        TEST_RETRY_PERIOD,
        is_last_attempt,
        pause_after,
    )
    from batchwright.workflows.failures import cause_of
    from batchwright.workflows.options import webhook_options


@workflow.defn(name=WORKFLOW)
class WebhookDeliveryWorkflow:
    @workflow.run
    async def run(self, order: DeliveryOrder) -> DeliveryResult:
        """Send a webhook, with retries, until it succeeds or the retry period is over.

        The retry period is 72 h, or 5 min for a test event. The workflow also ends if the endpoint is deleted
        or disabled. Return the number of attempts and the outcome of the last attempt.
        """
        period = TEST_RETRY_PERIOD if order.is_test else RETRY_PERIOD
        began, attempt = workflow.now(), 0
        while True:
            attempt += 1
            is_last = is_last_attempt(workflow.now() - began, period)
            result = await self._attempt(order, attempt, is_last=is_last)
            if result.is_final or is_last:
                return DeliveryResult(attempts=attempt, outcome=result.outcome)
            workflow.set_current_details(f"attempt {attempt} failed: {result.outcome}")
            pause = pause_after(attempt, workflow.now() - began, period)
            await workflow.sleep(pause, summary=f"until attempt {attempt + 1}")

    async def _attempt(self, order: DeliveryOrder, attempt: int, *, is_last: bool) -> AttemptResult:
        try:
            return await workflow.execute_activity_method(
                WebhookActivities.deliver_webhook,
                AttemptRequest(order=order, is_last=is_last),
                **webhook_options(order, attempt),
            )
        except ActivityError as error:
            if is_cancelled_exception(error) or is_last:
                raise
            return AttemptResult(is_final=False, outcome=cause_of(error))
