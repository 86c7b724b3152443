"""Every declared activity is implemented, with the same name and payload types."""

import importlib
import pkgutil
from types import FunctionType
from typing import get_type_hints

import pytest

from batchwright import contracts
from batchwright.activities.batch_end.end_without_files import Lifecycle
from batchwright.activities.batch_schedules.activity import BatchScheduling
from batchwright.activities.consistency.activity import ConsistencyChecking
from batchwright.activities.execution.activity import Execution
from batchwright.activities.finalization.activity import Finalization
from batchwright.activities.ingestion.activity import Ingestion
from batchwright.activities.output_copies.activity import OutputCopies
from batchwright.activities.retention.activity import Retention
from batchwright.activities.webhooks.activity import WebhookDeliveries
from batchwright.contracts.temporal_payloads.batch_schedules import ScheduleActivities
from batchwright.contracts.temporal_payloads.consistency import ConsistencyCheckActivities
from batchwright.contracts.temporal_payloads.execution import ExecutionActivities
from batchwright.contracts.temporal_payloads.finalization import FinalizationActivities, LifecycleActivities
from batchwright.contracts.temporal_payloads.ingestion import IngestionActivities
from batchwright.contracts.temporal_payloads.output_copies import OutputCopyActivities
from batchwright.contracts.temporal_payloads.retention import RetentionActivities
from batchwright.contracts.temporal_payloads.webhooks import WebhookActivities

PHASES: list[tuple[type, type]] = [
    (IngestionActivities, Ingestion),
    (ExecutionActivities, Execution),
    (FinalizationActivities, Finalization),
    (LifecycleActivities, Lifecycle),
    (RetentionActivities, Retention),
    (ConsistencyCheckActivities, ConsistencyChecking),
    (WebhookActivities, WebhookDeliveries),
    (ScheduleActivities, BatchScheduling),
    (OutputCopyActivities, OutputCopies),
]


def activities_of(phase: type) -> dict[str, FunctionType]:
    """Return the activities that the class itself implements, by name.

    Inherited ones are left out: they only raise NotImplementedError.
    """
    own = [member for member in vars(phase).values() if isinstance(member, FunctionType)]
    return {method.__name__: method for method in own if hasattr(method, "__temporal_activity_definition")}


@pytest.mark.parametrize(("declared", "implementation"), PHASES)
def test_every_declared_activity_is_implemented(declared: type, implementation: type) -> None:
    assert activities_of(declared)
    assert activities_of(implementation).keys() == activities_of(declared).keys()


@pytest.mark.parametrize(("declared", "implementation"), PHASES)
def test_an_implementation_has_the_declared_parameters_and_return_types(
    declared: type, implementation: type
) -> None:
    implemented = activities_of(implementation)
    for name, method in activities_of(declared).items():
        assert get_type_hints(implemented[name]) == get_type_hints(method)


def test_every_declared_activity_class_is_checked() -> None:
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(contracts.__path__, "batchwright.contracts.")
    ]
    declared = {name for module in modules for name in vars(module) if name.endswith("Activities")}
    assert declared == {phase.__name__ for phase, _ in PHASES}
