"""Roles of a worker process, and the number of activities that they run at a time."""

from collections.abc import Sequence
from enum import StrEnum

from batchwright.activities.services.worker_slices.slice_demand import MAX_SLICES
from batchwright.settings import Settings


class Role(StrEnum):
    CONTROL = "control"  # workflows, ends of batches without files, batches of schedules, and webhooks
    IO = "io"  # ingestion, finalization, retention, checks
    INFERENCE = "inference"  # slices


def parse_roles(text: str) -> Sequence[Role]:
    """Parse a list of roles such as `control,io,inference`. Return the roles without duplicates.

    Raises:
        ValueError: a name is not a role, or the text names no role. The message lists all roles.
    """
    chosen = [part.strip() for part in text.split(",") if part.strip()]
    for name in chosen:
        if name not in list(Role):
            raise ValueError(f"--roles: {name!r} is not a role; choose from {', '.join(Role)}")
    if not chosen:
        raise ValueError(f"--roles names no role; choose from {', '.join(Role)}")
    return [Role(name) for name in dict.fromkeys(chosen)]


def count_slots(settings: Settings, roles: Sequence[Role], queues: Sequence[str]) -> int:
    """Return the maximum number of activities that this process runs at a time.

    Only activities that read inputs, send lines or write outputs are counted.

    Args:
        settings: settings with the number of slots of the role `io`.
        roles: roles of the process.
        queues: task queues of models that the process polls now.
    """
    return (settings.io_slots if Role.IO in roles else 0) + MAX_SLICES * len(queues)
