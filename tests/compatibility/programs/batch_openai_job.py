"""batch-openai builds, submits and waits for a job."""

import os

from batch_openai import BatchRequestBuilder
from openai import OpenAI

builder = BatchRequestBuilder()
for number in range(10):
    builder.add(
        messages=[{"role": "user", "content": f"Hello {number}"}],
        model=os.environ["MODEL"],
        custom_id=f"document-{number}",
    )
job = builder.submit(OpenAI(), description="ten greetings")
result = job.wait(poll_interval=1)
assert len(result.succeeded) == 10
assert not result.failed
