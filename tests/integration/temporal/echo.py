"""A workflow that runs one activity, so that a worker for both is needed."""

from datetime import timedelta

from temporalio import workflow

ECHO_QUEUE = "echo"


@workflow.defn
class Echo:
    @workflow.run
    async def run(self, text: str) -> str:
        return await workflow.execute_activity(
            "echo", text, result_type=str, start_to_close_timeout=timedelta(seconds=20)
        )
