"""Inputs that are sent: chat requests of a given size, spread over the models."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

MODELS = ("llama-3.1-8b", "qwen2.5-7b", "mistral-7b")
_SYSTEM = "You are a careful assistant. Answer in one short sentence, in the language of the question. "


def write_input(path: Path, count: int, models: tuple[str, ...] = MODELS, line_bytes: int = 1024) -> None:
    """Lines share their system prompt and differ in the question."""
    with path.open("w") as file:
        file.writelines(
            f"{chat_line(number, models[number % len(models)], line_bytes)}\n" for number in range(count)
        )


def chat_line(number: int, model: str, line_bytes: int) -> str:
    """About as long as asked, not shorter than an empty request."""
    question = f"What is special about the number {number}? "
    line = _line(number, model, _SYSTEM * 3, question)
    missing = max(line_bytes - len(line), 0)
    return _line(number, model, _SYSTEM * 3, question + ("It is a number. " * (missing // 16 + 1))[:missing])


def write_unshared(path: Path, count: int, model: str = MODELS[0], line_bytes: int = 1024) -> None:
    """Lines that have nothing in common, so that no order of them pays."""
    with path.open("w") as file:
        for number in range(count):
            words = " ".join(_words(number, line_bytes // 8))
            file.write(_line(number, model, "", words) + "\n")


def _words(seed: int, count: int) -> Iterator[str]:
    chance = random.Random(seed)
    return (f"{chance.getrandbits(28):07x}" for _ in range(count))


def _line(number: int, model: str, system: str, question: str) -> str:
    turns = [{"role": "system", "content": system}] if system else []
    body = {"model": model, "messages": [*turns, {"role": "user", "content": question}], "max_tokens": 32}
    line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line)
