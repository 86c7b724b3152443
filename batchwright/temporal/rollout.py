"""List the builds (versions) of the workers, and choose the build whose workers get all new batches.

This build is called the current build. Builds are managed with Temporal's Worker Deployment Versioning.
"""

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
from batchwright.temporal.namespace.namespace_checks import RPC_TIMEOUT

_PREFIX = "WORKER_DEPLOYMENT_VERSION_STATUS_"
_OPEN_BATCHES_QUERY = (
    "WorkflowType = 'BatchWorkflow' AND ExecutionStatus = 'Running' "
    "AND TemporalWorkerDeploymentVersion = '{}'"
)


@dataclass(frozen=True)
class Build:
    """A build (version) of the workers.

    `batches` is the number of batches that have not ended and need workers of this build. `status` is the
    word that Temporal uses: current, ramping, draining (some workflows of the build have not ended), drained,
    inactive or created.
    """

    build: str
    status: str
    batches: int  # live batches, which need workers of this build
    created_at: datetime
    current_since: datetime | None


class RolloutRefused(Exception):
    """Raised if a build cannot be made the current build. The message has the reason and the remedy."""


async def list_builds(client: Client, deployment: str) -> Sequence[Build]:
    """Return the builds of a worker deployment, newest first. Raises RPCError if a call to Temporal fails.

    The list is empty if no worker with a build id has ever connected.
    """
    info = await _describe_deployment(client, deployment)
    if info is None:
        return []
    found: list[Build] = []
    for summary in info.version_summaries:
        build = summary.deployment_version.build_id
        counted = await client.count_workflows(_OPEN_BATCHES_QUERY.format(f"{deployment}:{build}"))
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
    """Make a build current, so that its workers get all new batches.

    Return the id of the previous current build; empty if there was none.

    Args:
        deployment: name of the worker deployment.
        build: id of the build; empty for workers without a build id.
        lacking_queues: True to accept a build that polls fewer task queues than the current build.

    Raises:
        RolloutRefused: Temporal knows no such build, or refuses the build, for example because its workers
            do not poll a task queue that is needed.
        RPCError: a call to Temporal failed for another reason.
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
                "start its workers first. `batchwright rollout show` lists the builds."
            ) from error
        if error.status is RPCStatusCode.FAILED_PRECONDITION:
            raise RolloutRefused(
                f"Temporal refused to make {build!r} the current build of {deployment!r}: "
                f"{error.message.rstrip('.')}. Workers of the build have to poll every queue with waiting "
                "batches. If a model is gone for good, use --lacking-queues."
            ) from error
        raise
    return answer.previous_deployment_version.build_id


async def _describe_deployment(client: Client, deployment: str) -> WorkerDeploymentInfo | None:
    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=deployment)
    try:
        answer = await client.workflow_service.describe_worker_deployment(request, timeout=RPC_TIMEOUT)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and not is_unknown_namespace(error):
            return None
        raise
    return answer.worker_deployment_info


def _moment(stamp: Timestamp) -> datetime | None:
    return stamp.ToDatetime(UTC) if stamp.seconds else None
