"""Waits until a batch is in a given phase.

The database is polled often, because a phase may last milliseconds.
"""

import asyncio
import time

from batchwright.database.driver import TRANSIENT_ERRORS, connect
from tests.chaos.schedule import Kind

_LOOK_SECONDS = 0.02
_PATIENCE_SECONDS = 20.0
_LIVE = "status IN ('validating', 'in_progress', 'finalizing')"
_PHASES = {
    Kind.KILL_INGESTING: "status = 'validating'",
    Kind.KILL_RUNNING: "status = 'in_progress' AND EXISTS (SELECT FROM slice_progress WHERE batch_id = id)",
    Kind.KILL_FINALIZING: "status = 'finalizing'",
    Kind.KILL_CANCELLING: f"cancel_requested_at IS NOT NULL AND {_LIVE}",
}


async def reached(postgres: str, kind: Kind) -> bool:
    """Wait until a batch is in the phase that the disturbance `kind` needs. Return False after 20 seconds."""
    phase = _PHASES.get(kind)
    if phase is None:
        return True
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        try:
            connection = await connect(postgres)
            try:
                while time.monotonic() < until:
                    if await connection.fetch(f"SELECT id FROM batches WHERE {phase} LIMIT 1"):
                        return True
                    await asyncio.sleep(_LOOK_SECONDS)
            finally:
                await connection.close()
        except TRANSIENT_ERRORS:
            await asyncio.sleep(0.2)  # it is being started again
    return False
