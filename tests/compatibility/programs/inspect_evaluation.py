"""Inspect runs an evaluation with its requests in a batch."""

import os

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import BatchConfig
from inspect_ai.scorer import includes

batch = BatchConfig(size=10, send_delay=1, tick=1)
[log] = eval(
    Task(dataset=[Sample(input=f"Hello {number}", target="") for number in range(10)], scorer=includes()),
    model=f"openai/{os.environ['MODEL']}",
    batch=batch,
    model_args={"responses_api": False},
    display="none",
    log_dir="logs",
)
assert log.status == "success"
assert log.samples is not None
assert len(log.samples) == 10
