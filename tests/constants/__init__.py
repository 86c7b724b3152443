"""Changes constants of the product in processes that a test starts."""

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

_STARTUP = Path(__file__).parent / "startup"  # Python runs its `sitecustomize.py` before the program
_VARIABLE = "TEST_CONSTANTS"
VARIABLES = ("PYTHONPATH", _VARIABLE)  # the environment variables of `with_constants`


def with_constants(**values: object) -> dict[str, str]:
    """Return environment variables that change constants in a process.

    `values` has the new values; the names are the keys of `CONSTANTS`. A duration is given in seconds, even
    if the constant is a timedelta.
    """
    changed = {place: value for name, value in values.items() for place in CONSTANTS[name]}
    return {"PYTHONPATH": python_path(), _VARIABLE: json.dumps(changed)}


@contextmanager
def constants(**values: object) -> Generator[None]:
    """Change constants in all processes that are started during the `with` block."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in with_constants(**values).items():
            environment.setenv(name, value)
        yield


def python_path(*folders: str) -> str:
    """Return the PYTHONPATH that a process needs for `with_constants`.

    Modules in `folders` take precedence over all other modules.
    """
    return os.pathsep.join(filter(None, [*folders, str(_STARTUP), os.environ.get("PYTHONPATH", "")]))


# Each constant as `module:attribute`.
CONSTANTS = {
    "body_seconds": ["batchwright.api.middleware.header_size_and_body_speed:BODY_SECONDS"],
    "hand_over_events": ["batchwright.temporal.batch_order:_HAND_OVER_EVENTS"],
    "event_poll_seconds": ["batchwright.api.services.batches.progress_events:POLL_SECONDS"],
    "fleet_fresh_age": ["batchwright.worker.limit_share_updater:FRESH_AGE"],
    "header_seconds": ["batchwright.api.client_limits.slow_connections:BoundedProtocol.seconds_for_headers"],
    "linger_seconds": ["batchwright.api.client_limits.slow_connections:BoundedProtocol.seconds_lingering"],
    "max_part_bytes": ["batchwright.api.services.files.upload_assembly:MAX_PART_BYTES"],
    "max_slice_lines": ["batchwright.rules.planning.slicing:MAX_SLICE_LINES"],
    "observe_seconds": ["batchwright.worker.wiring:_OBSERVE_SECONDS"],
    "outstanding_slices": ["batchwright.temporal.batch_order:_OUTSTANDING_SLICES"],
    "query_seconds": ["batchwright.database.driver:QUERY_SECONDS"],
    "refresh_seconds": [
        "batchwright.inference.registry.backend_registry:_REFRESH_SECONDS",
        "batchwright.inference.registry.backend_registry:_REFRESH_CHANGES_SECONDS",
        "batchwright.inference.limits.fleet_rate_limits:_REFRESH_SECONDS",
        "batchwright.worker.task_queue_rate_limits:SYNC_SECONDS",
    ],
    "stalled_seconds": ["batchwright.api.client_limits.slow_connections:BoundedProtocol.seconds_stalled"],
    "startup_seconds": ["batchwright.worker.dependency_checks:STARTUP_SECONDS"],
    "storage_patience_seconds": ["batchwright.storage.s3.storage:_PATIENCE_SECONDS"],
    "stream_seconds": ["batchwright.api.client_limits.long_responses:LIFETIME_SECONDS"],
}
