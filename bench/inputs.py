"""Writes input files of chat requests. Lines have a given size, and are for several models in turn."""

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

MODELS = ("llama-3.1-8b", "qwen2.5-7b", "mistral-7b")
_SYSTEM = "You are a careful assistant. Answer in one short sentence, in the language of the question. "


def write_input(
    path: Path,
    count: int,
    models: tuple[str, ...] = MODELS,
    line_bytes: int = 1024,
    fields: Mapping[str, object] | None = None,
) -> None:
    """Write an input file of `count` chat requests with the same system prompt and different questions.

    The lines are for the models in turn: one line for each model, then again one line for each, and so on.
    Each line has about `line_bytes` bytes. `fields` are added to the body of each request. A field that the
    body already has is replaced.
    """
    with path.open("w") as file:
        file.writelines(
            f"{chat_line(number, models[number % len(models)], line_bytes, fields)}\n"
            for number in range(count)
        )


def chat_line(number: int, model: str, line_bytes: int, fields: Mapping[str, object] | None = None) -> str:
    """Return line number `number` of an input file, filled to a size of about `line_bytes` bytes."""
    question = f"What is special about the number {number}? "
    line = _line(number, model, _SYSTEM * 3, question, fields)
    missing = max(line_bytes - len(line), 0)
    question += ("It is a number. " * (missing // 16 + 1))[:missing]
    return _line(number, model, _SYSTEM * 3, question, fields)


def write_unshared(path: Path, count: int) -> None:
    """Write an input file of `count` chat requests whose prompts of about 1 KiB all begin differently.

    A prefix cache (a backend's cache of the beginnings of prompts) is useless for such prompts, in any order
    of the lines.
    """
    with path.open("w") as file:
        for number in range(count):
            words = " ".join(_words(number, 128))
            file.write(_line(number, MODELS[0], "", words) + "\n")


def _words(seed: int, count: int) -> Iterator[str]:
    rng = random.Random(seed)
    return (f"{rng.getrandbits(28):07x}" for _ in range(count))


def _line(
    number: int, model: str, system: str, question: str, fields: Mapping[str, object] | None = None
) -> str:
    turns = [{"role": "system", "content": system}] if system else []
    messages = [*turns, {"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "max_tokens": 32, **(fields or {})}
    line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line)
