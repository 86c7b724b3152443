"""The input both sides send: small chat requests, spread over the models."""

import json
from pathlib import Path

_SYSTEM = "You are a careful assistant. Answer in one short sentence, in the language of the question. "


def write_input(path: Path, count: int, models: list[str]) -> None:
    with path.open("w") as file:
        for number in range(count):
            file.write(json.dumps(_line(number, models[number % len(models)])) + "\n")


def _line(number: int, model: str) -> dict[str, object]:
    question = f"What is special about the number {number}?"
    body = {
        "model": model,
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
