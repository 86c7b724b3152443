"""A hook of the workers of tests: what the user's message says happens to its line."""

import asyncio
import json

from batchwright.inference.hooks import Call, Refused


async def as_told(call: Call) -> object:
    body = json.loads(call.body)
    told = body["messages"][-1]["content"] if "messages" in body else ""
    if told == "refuse":
        raise Refused("no such words here")
    if told == "raise":
        raise RuntimeError("sk-secret-of-the-hook")
    if told == "hang":
        await asyncio.Event().wait()
    return 7 if told == "rubbish" else None
