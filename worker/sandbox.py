"""How workflow code runs: in the SDK's sandbox, which is made and entered no more often than it has to be."""

from dataclasses import dataclass

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import StorageDriverStoreContext
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import Info

_RESTRICTIONS = SandboxRestrictions.default.with_passthrough_modules("workflows")


@dataclass(frozen=True)
class Sandbox(SandboxedWorkflowRunner):
    """Refuses what the SDK's refuses, but does not import our workflows anew for each run (decision 0060)."""

    restrictions: SandboxRestrictions = _RESTRICTIONS

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Instance(super().create_instance(det))


class _Instance(WorkflowInstance):
    """Enters the sandbox for activations only.

    The SDK does so for each payload too, to learn its context; our converter and codec ask for none, and
    there is no storage outside of payloads.
    """

    def __init__(self, within: WorkflowInstance) -> None:
        self._within = within

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        return self._within.activate(act)

    def get_serialization_context(self, command_info: object) -> None:
        return None

    def get_external_store_context(self, command_info: object) -> StorageDriverStoreContext:
        return StorageDriverStoreContext(target=None)

    def get_info(self) -> Info:
        return self._within.get_info()

    def get_thread_id(self) -> int | None:
        return self._within.get_thread_id()
