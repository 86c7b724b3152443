"""Hook of the workers in tests.

The message of a line says what the hook does: `refuse`, `raise`, `hang` or `rubbish`.
"""

import asyncio
import json

from batchwright.inference.hooks import HookCall, Refused


async def follow_instruction(call: HookCall) -> object:
    body = json.loads(call.body)
    instruction = body["messages"][-1]["content"] if "messages" in body else ""
    if instruction == "refuse":
        raise Refused("no such words here")
    if instruction == "raise":
        raise RuntimeError("sk-secret-of-the-hook")
    if instruction == "hang":
        await asyncio.Event().wait()
    return 7 if instruction == "rubbish" else None
