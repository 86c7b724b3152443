"""instructor's batches with a response model. The simulator's answers are not JSON of this model."""

import os
import tempfile
import time
from pathlib import Path

from instructor.batch import BatchProcessor
from pydantic import BaseModel


class Greeting(BaseModel):
    text: str


processor = BatchProcessor(f"openai/{os.environ['MODEL']}", Greeting)
path = str(Path(tempfile.mkdtemp()) / "input.jsonl")
processor.create_batch_from_messages(
    messages_list=[[{"role": "user", "content": f"Hello {number}"}] for number in range(10)], file_path=path
)
batch_id = processor.submit_batch(path)
while processor.get_batch_status(batch_id)["status"] not in {"completed", "failed", "expired", "cancelled"}:
    time.sleep(0.5)
assert processor.get_batch_status(batch_id)["status"] == "completed"
assert len(processor.retrieve_results(batch_id)) == 10
