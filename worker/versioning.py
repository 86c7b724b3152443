"""Worker Deployment Versioning, where settings ask for it: a batch stays on the build that started it."""

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from batchwright.settings import Settings, SettingsError


def deployment(settings: Settings) -> WorkerDeploymentConfig | None:
    """None: unversioned. `PINNED` is the deployment's default, for workflows name none (decision 0006).

    Raises:
        SettingsError: one of the two settings without the other.
    """
    name, build = settings.deployment_name, settings.build_id
    if bool(name) != bool(build):
        missing = "BUILD_ID" if name else "DEPLOYMENT_NAME"
        raise SettingsError(
            f"BATCHWRIGHT_{missing} is missing: BATCHWRIGHT_DEPLOYMENT_NAME ({name!r}) and "
            f"BATCHWRIGHT_BUILD_ID ({build!r}) go together."
        )
    if not name:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=name, build_id=build),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )
