"""The input both sides send: small chat requests over three models."""

import json
from pathlib import Path

MODELS = ("llama-3.1-8b", "qwen2.5-7b", "mistral-small")
_SYSTEM = "You are a careful assistant. Answer in one short sentence, in the language of the question. "


def write_input(path: Path, count: int) -> None:
    with path.open("w") as file:
        for number in range(count):
            file.write(json.dumps(_line(number)) + "\n")


def _line(number: int) -> dict[str, object]:
    question = f"What is special about the number {number}?"
    body = {
        "model": MODELS[number % len(MODELS)],
        "messages": [
            {"role": "system", "content": _SYSTEM * 3},
            {"role": "user", "content": question},
        ],
        "max_tokens": 32,
    }
    return {
        "custom_id": f"line-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }
