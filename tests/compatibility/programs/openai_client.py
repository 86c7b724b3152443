"""The official client: a file, a batch, its results."""

import os
import time

from openai import OpenAI

client = OpenAI()
line = (
    '{"custom_id": "%d", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "%s",'
    ' "messages": [{"role": "user", "content": "Hello"}]}}'
)
lines = "\n".join(line % (number, os.environ["MODEL"]) for number in range(10))
file = client.files.create(file=("input.jsonl", lines.encode()), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status not in {"completed", "failed", "expired", "cancelled"}:
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)
assert batch.status == "completed"
assert batch.output_file_id is not None
assert len(client.files.content(batch.output_file_id).text.splitlines()) == 10
