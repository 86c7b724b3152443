"""The official client of Anthropic: a message batch and its results."""

import os
import time

from anthropic import Anthropic

client = Anthropic()
batch = client.messages.batches.create(
    requests=[
        {
            "custom_id": f"request-{number}",
            "params": {
                "model": os.environ["MODEL"],
                "max_tokens": 16,
                "messages": [{"role": "user", "content": "Hello"}],
            },
        }
        for number in range(10)
    ]
)
while batch.processing_status != "ended":
    time.sleep(0.5)
    batch = client.messages.batches.retrieve(batch.id)
results = list(client.messages.batches.results(batch.id))
assert len(results) == 10
assert {result.result.type for result in results} == {"succeeded"}
