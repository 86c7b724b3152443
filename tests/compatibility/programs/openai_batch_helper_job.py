"""openai-batch-helper runs a job, from its tasks to the results by custom_id."""

import os

from openai_batch_helper import BatchHelper

job = BatchHelper(endpoint="/v1/chat/completions", completion_window="24h").init_job()
for number in range(10):
    job.add_task(
        f"task-{number}",
        body={"model": os.environ["MODEL"], "messages": [{"role": "user", "content": "Hello"}]},
    )
job.submit_file().submit_batch_job(metadata={"project": "greetings"}).wait_for_completion(poll_seconds=0.5)
job.download_result()
assert set(job.map_by_custom_id()) == {f"task-{number}" for number in range(10)}
