"""The command of openai-batch submits a file, waits and downloads."""

import json
import os
import runpy
import sys
from pathlib import Path

body = {"model": os.environ["MODEL"], "messages": [{"role": "user", "content": "Hello"}]}
lines = [
    {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
    for number in range(10)
]
Path("input.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
sys.argv[1:] = ["input.jsonl", "--output-file", "output.jsonl", "--base-url", os.environ["OPENAI_BASE_URL"]]
runpy.run_module("openai_batch.run", run_name="__main__")
assert len(Path("output.jsonl").read_text().splitlines()) == 10
