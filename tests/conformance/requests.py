"""Files and batches that several checks create."""

import json
from pathlib import Path

from openai import AsyncOpenAI
from openai.types import Batch, FileObject

from tests.e2e.batches import CHAT, chat_lines, ended
from tests.e2e.stack import MODELS

LINES = chat_lines(MODELS[:1], each=3)
NOWHERE = "file-" + "0" * 32


def jsonl(lines: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


CONTENT = jsonl(LINES)


async def sent(client: AsyncOpenAI, content: bytes = CONTENT, name: str = "in.jsonl") -> FileObject:
    return await client.files.create(file=(name, content), purpose="batch")


async def created(client: AsyncOpenAI, content: bytes = CONTENT) -> Batch:
    file = await sent(client, content)
    return await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


async def done(client: AsyncOpenAI, content: bytes = CONTENT) -> Batch:
    """Create a batch, wait until it has ended, and return it."""
    return await ended(client, (await created(client, content)).id)


def here(name: str) -> Path:
    return Path(__file__).parent / name
