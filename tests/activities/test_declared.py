"""What workflows may call is implemented, under the same name and with the same messages."""

import importlib
import pkgutil
from types import FunctionType
from typing import get_type_hints

import pytest

from activities.auditing import Auditing
from activities.execution import Execution
from activities.finalization import Finalization
from activities.ingestion import Ingestion
from activities.lifecycle import Lifecycle
from activities.retention import Retention
from batchwright import contracts
from batchwright.contracts.audit import AuditActivities
from batchwright.contracts.execution import ExecutionActivities
from batchwright.contracts.finalization import FinalizationActivities
from batchwright.contracts.ingestion import IngestionActivities
from batchwright.contracts.lifecycle import LifecycleActivities
from batchwright.contracts.retention import RetentionActivities

CONTRACTS = list(pkgutil.iter_modules(contracts.__path__))
PHASES: list[tuple[type, type]] = [
    (IngestionActivities, Ingestion),
    (ExecutionActivities, Execution),
    (FinalizationActivities, Finalization),
    (LifecycleActivities, Lifecycle),
    (RetentionActivities, Retention),
    (AuditActivities, Auditing),
]


def activities_of(phase: type) -> dict[str, FunctionType]:
    """Those the class itself decorates: an inherited declaration would raise NotImplementedError."""
    own = [member for member in vars(phase).values() if isinstance(member, FunctionType)]
    return {method.__name__: method for method in own if hasattr(method, "__temporal_activity_definition")}


@pytest.mark.parametrize(("declared", "implementation"), PHASES)
def test_every_declared_activity_is_implemented(declared: type, implementation: type) -> None:
    assert activities_of(declared)
    assert activities_of(implementation).keys() == activities_of(declared).keys()


@pytest.mark.parametrize(("declared", "implementation"), PHASES)
def test_an_implementation_takes_and_returns_what_is_declared(declared: type, implementation: type) -> None:
    implemented = activities_of(implementation)
    for name, method in activities_of(declared).items():
        assert get_type_hints(implemented[name]) == get_type_hints(method)


def test_every_phase_of_the_contracts_is_known_here() -> None:
    modules = [importlib.import_module(f"batchwright.contracts.{found.name}") for found in CONTRACTS]
    declared = {name for module in modules for name in vars(module) if name.endswith("Activities")}
    assert declared == {phase.__name__ for phase, _ in PHASES}
