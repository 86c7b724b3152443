"""OpenBatch writes the input of a batch."""

import os
import tempfile
import time
from pathlib import Path

from openai import OpenAI
from openbatch import BatchCollector

client = OpenAI()
path = Path(tempfile.mkdtemp()) / "input.jsonl"
collector = BatchCollector(batch_file_path=path)
for number in range(10):
    collector.chat.completions.create(
        custom_id=str(number), model=os.environ["MODEL"], messages=[{"role": "user", "content": "Hello"}]
    )
file = client.files.create(file=path, purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status not in {"completed", "failed", "expired", "cancelled"}:
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)
assert batch.status == "completed"
assert batch.request_counts.completed == 10
