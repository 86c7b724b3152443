"""curator generates a dataset in batch mode."""

import os

from bespokelabs import curator

llm = curator.LLM(
    model_name=os.environ["MODEL"],
    batch=True,
    backend="openai",
    backend_params={
        "base_url": os.environ["OPENAI_BASE_URL"],
        "api_key": os.environ["OPENAI_API_KEY"],
        "batch_size": 5,
        "batch_check_interval": 1,
    },
)
answers = llm([f"Hello {number}" for number in range(10)])
assert len(answers.dataset) == 10
