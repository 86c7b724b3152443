"""LiteLLM's functions for batches."""

import json
import os
import tempfile
import time
from pathlib import Path

import litellm

connection = {"api_base": os.environ["OPENAI_BASE_URL"], "custom_llm_provider": "openai"}
body = {"model": os.environ["MODEL"], "messages": [{"role": "user", "content": "Hello"}]}
lines = [
    {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
    for number in range(10)
]
path = Path(tempfile.mkdtemp()) / "input.jsonl"
path.write_text("\n".join(json.dumps(line) for line in lines))
with path.open("rb") as opened:
    file = litellm.create_file(file=opened, purpose="batch", **connection)
batch = litellm.create_batch(
    completion_window="24h", endpoint="/v1/chat/completions", input_file_id=file.id, **connection
)
while batch.status not in {"completed", "failed", "expired", "cancelled"}:
    time.sleep(0.5)
    batch = litellm.retrieve_batch(batch_id=batch.id, **connection)
assert batch.status == "completed"
content = litellm.file_content(file_id=batch.output_file_id, **connection)
assert len(content.text.splitlines()) == 10
assert batch.id in {listed.id for listed in litellm.list_batches(**connection).data}
