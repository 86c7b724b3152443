"""Checks of Temporal: the server, the namespace, who polls, and its clock."""

from collections.abc import Sequence

from temporalio.client import Client
from temporalio.service import RPCError

from batchwright.contracts.names import CONTROL_QUEUE, DISPATCH_QUEUE, IO_QUEUE, inference_queue
from batchwright.rules.ids import safe_name
from batchwright.settings import Settings, SettingsError
from batchwright.temporal import TemporalNotSetUp, TemporalUnavailable, connect
from batchwright.temporal.errors import refused
from batchwright.temporal.namespace import Namespace
from batchwright.temporal.queues import QueueReport, report, server_time
from starter.operate.findings import Finding, clock, ok, problem, warning
from starter.operate.parts import Clock


def queues_of(models: Sequence[str]) -> list[str]:
    """Every task queue of an installation that serves `models`."""
    return [CONTROL_QUEUE, IO_QUEUE, DISPATCH_QUEUE, *(inference_queue(safe_name(name)) for name in models)]


async def temporal(chosen: Settings, at: Clock, models: Sequence[str]) -> list[Finding]:
    try:
        client = await connect(chosen)
    except SettingsError:
        return []  # said of the settings
    except TemporalUnavailable as error:
        return [problem("temporal", str(error))]
    found = [ok("temporal", f"It answers at {chosen.temporal_address}.")]
    try:
        await Namespace(client, chosen).check()
        found.append(ok("namespace", f"{client.namespace} has all search attributes."))
    except TemporalNotSetUp as error:
        return [*found, problem("namespace", str(error))]
    except TemporalUnavailable as error:
        return [problem("temporal", str(error))]
    try:
        return [*found, *await _clock(client, at), *await _polled(client, models)]
    except RPCError as error:
        return [*found, problem("temporal", str(refused(chosen, error)))]


async def reports(client: Client, models: Sequence[str]) -> list[QueueReport]:
    """Of every task queue. Raises RPCError."""
    return [await report(client, queue) for queue in queues_of(models)]


async def _clock(client: Client, at: Clock) -> list[Finding]:
    theirs = await server_time(client)
    return [clock("Temporal", theirs, at())] if theirs else []


async def _polled(client: Client, models: Sequence[str]) -> list[Finding]:
    idle = [queue.name for queue in await reports(client, models) if not queue.pollers]
    if not idle:
        return [ok("workers", "Every task queue is polled.")]
    return [
        warning("workers", f"Nobody polls {queue}: what is there waits.", "Start `batchwright worker`.")
        for queue in idle
    ]
