"""Checks of Temporal: server, namespace, clock, and the workers that poll its task queues."""

from collections.abc import Sequence

from temporalio.client import Client
from temporalio.service import RPCError

from batchwright.contracts.temporal_names import (
    CONTROL_QUEUE,
    DISPATCH_QUEUE,
    IO_QUEUE,
    OUTPUT_QUEUE,
    WEBHOOK_QUEUE,
    inference_queue,
)
from batchwright.rules.ids import safe_name
from batchwright.settings import Settings, SettingsError
from batchwright.starter.diagnostics.backend_checks import BackendCheck
from batchwright.starter.diagnostics.checks import Clock
from batchwright.starter.diagnostics.clock_check import compare_clocks
from batchwright.starter.diagnostics.findings import Finding, ok, problem, warning
from batchwright.temporal import TemporalNotSetUp, TemporalUnavailable, connect
from batchwright.temporal.errors import from_rpc_error
from batchwright.temporal.namespace.namespace_checks import Namespace
from batchwright.temporal.task_queues import QueueReport, describe_queue, server_time

_ALWAYS_POLLED = (CONTROL_QUEUE, IO_QUEUE, OUTPUT_QUEUE, WEBHOOK_QUEUE, DISPATCH_QUEUE)


def task_queues(models: Sequence[str]) -> list[str]:
    """Return the names of all Temporal task queues that must be polled to serve these models."""
    return [*_ALWAYS_POLLED, *(inference_queue(safe_name(name)) for name in models)]


async def check_temporal(chosen: Settings, at: Clock, backends: BackendCheck) -> list[Finding]:
    try:
        client = await connect(chosen)
    except SettingsError:
        return []  # the check of the settings reports the problem
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
        asked = at()
        theirs = await server_time(client)
        if theirs:
            found.append(compare_clocks("Temporal", theirs, asked=asked, answered=at()))
        return [*found, *await check_pollers(client, backends)]
    except RPCError as error:
        return [*found, problem("temporal", str(from_rpc_error(chosen, error)))]


async def queue_reports(client: Client, models: Sequence[str]) -> list[QueueReport]:
    """Return a report about each task queue that must be polled to serve these models.

    A report has the number of waiting tasks, the number of pollers, and the limit of activity starts per
    second.

    Raises:
        RPCError: Temporal is unavailable.
    """
    return [await describe_queue(client, queue) for queue in task_queues(models)]


async def check_pollers(client: Client, backends: BackendCheck) -> list[Finding]:
    """Check that workers poll all task queues that are needed to serve the known models.

    Raises:
        RPCError: Temporal is unavailable.
    """
    found = [
        warning("workers", f"No worker polls {queue.name}, so its tasks wait.", "Start `batchwright worker`.")
        for queue in await queue_reports(client, backends.models)
        if not queue.pollers and (queue.backlog or queue.name in _ALWAYS_POLLED)
    ]
    if not backends.all_models_known:
        message = "The task queues of some models were not checked, because not all models are known."
        found.append(warning("workers", message, "Mend what was found at the backends, then try again."))
    if found:
        return found
    if not backends.models:
        queues = ", ".join(_ALWAYS_POLLED)
        return [ok("workers", f"Workers poll {queues}. No model is known, so no other queue is needed.")]
    return [ok("workers", "Every task queue that is needed is polled.")]
