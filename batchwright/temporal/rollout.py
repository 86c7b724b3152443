"""Builds of our workers as Temporal's Worker Deployment Versioning knows them; which takes new batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.deployment.v1 import WorkerDeploymentInfo
from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from batchwright.temporal.errors import is_unknown_namespace
from batchwright.temporal.namespace import RPC_TIMEOUT

_PREFIX = "WORKER_DEPLOYMENT_VERSION_STATUS_"
_OPEN = (
    "WorkflowType = 'BatchWorkflow' AND ExecutionStatus = 'Running' "
    "AND TemporalWorkerDeploymentVersion = '{}'"
)


@dataclass(frozen=True)
class Build:
    """`status` is Temporal's: current, ramping, draining (it has open runs), drained, inactive, created."""

    build: str
    status: str
    batches: int  # live ones, which need its workers
    created_at: datetime
    current_since: datetime | None = None


class RolloutRefused(Exception):
    """Temporal does not take the build; the message says why, and what to do."""


async def builds(client: Client, deployment: str) -> Sequence[Build]:
    """Newest first; none where no versioned worker has ever polled. Raises RPCError."""
    info = await _described(client, deployment)
    if info is None:
        return []
    found: list[Build] = []
    for summary in info.version_summaries:
        build = summary.deployment_version.build_id
        counted = await client.count_workflows(_OPEN.format(f"{deployment}:{build}"))
        found.append(
            Build(
                build=build,
                status=WorkerDeploymentVersionStatus.Name(summary.status).removeprefix(_PREFIX).lower(),
                batches=counted.count,
                created_at=_moment(summary.create_time) or datetime.now(UTC),
                current_since=_moment(summary.current_since_time),
            )
        )
    return sorted(found, key=lambda each: each.created_at, reverse=True)


async def make_current(client: Client, deployment: str, build: str, *, lacking_queues: bool = False) -> str:
    """New batches go to that build from now on, or to unversioned workers for an empty one.

    Returns the build that was current before; empty: none. `lacking_queues` allows a build that polls fewer
    queues than the current one.

    Raises:
        RolloutRefused: no worker of the build polls, or it lacks queues.
        RPCError: anything else.
    """
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace,
        deployment_name=deployment,
        build_id=build,
        identity=client.identity,
        ignore_missing_task_queues=lacking_queues,
    )
    try:
        answer = await client.workflow_service.set_worker_deployment_current_version(
            request, timeout=RPC_TIMEOUT
        )
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise RolloutRefused(
                f"Temporal knows no build {build!r} of the deployment {deployment!r}: "
                "start its workers first, or see `batchwright rollout show`."
            ) from error
        if error.status is RPCStatusCode.FAILED_PRECONDITION:
            raise RolloutRefused(_refusal(deployment, build, error.message)) from error
        raise
    return answer.previous_deployment_version.build_id


async def _described(client: Client, deployment: str) -> WorkerDeploymentInfo | None:
    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=deployment)
    try:
        answer = await client.workflow_service.describe_worker_deployment(request, timeout=RPC_TIMEOUT)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and not is_unknown_namespace(error):
            return None
        raise
    return answer.worker_deployment_info


def _refusal(deployment: str, build: str, message: str) -> str:
    return (
        f"Temporal does not make {build!r} the current build of {deployment!r}: {message.rstrip('.')}. "
        "Workers of the build have to poll every queue that batches wait in; where a model is gone for good, "
        "use --lacking-queues."
    )


def _moment(stamp: Timestamp) -> datetime | None:
    return stamp.ToDatetime(UTC) if stamp.seconds else None
