"""How workflow code runs: in the SDK's sandbox, which does not import our workflows anew for each run."""

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions


def sandbox() -> SandboxedWorkflowRunner:
    """Refuses what the SDK's own refuses, but in modules that all runs share (decision 0060)."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules("workflows")
    return SandboxedWorkflowRunner(restrictions=restrictions)
