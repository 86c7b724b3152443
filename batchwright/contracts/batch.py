"""What a batch is asked to be: the start argument of its workflow, and the whole of its row."""

from datetime import datetime
from enum import StrEnum

from batchwright.contracts.message import Message
from batchwright.contracts.openai import BatchStatus, Endpoint, Profile, Usage


class Caller(Message):
    """What a batch's requests need to know of the request that created it. Never a credential."""

    key_id: str = ""  # of the API key; empty: there was none
    headers: dict[str, str] = {}  # those that are passed on, by their names in lower case


class BatchPolicy(Message):
    """The operator's settings a running batch depends on, fixed at its start (workflows read no settings)."""

    profile: Profile = Profile.RELAXED
    cancel_grace_seconds: float = 30.0
    expiry_grace_seconds: float = 5.0
    finalize_patience_seconds: float = 86_400.0
    heartbeat_timeout_seconds: float = 30.0
    slice_seconds: float = 30.0  # a slice's turn
    outstanding_slices: int = 32  # scheduled at once per model
    inline_slices: int = 0  # a batch with no more of them, of all models, has no model runs of their own
    few_steps: bool = False  # nothing is set in Temporal that the start has set
    deduplicate: bool = False  # lines that ask the same are asked once; as the client wants it
    caller: Caller = Caller()
    continue_as_new_events: int = (
        0  # history length at which a model run continues as new; 0: the server's word
    )


class Chance(StrEnum):
    """Why a batch was made of another that has ended."""

    RETRY = "retry"  # its input are the other's lines that failed
    RESUME = "resume"  # it takes over what the other has settled of the same input


class Origin(Message):
    """The batch that another one was made of."""

    batch_id: str
    chance: Chance


class BatchOrder(Message):
    """Everything the batch's row needs, so that the row can be made from a run alone.

    Times are whole Unix seconds, UTC. `expires_at` = `created_at` + window.
    """

    batch_id: str
    tenant: str
    input_file_id: str
    endpoint: Endpoint
    completion_window: str  # as the client wrote it
    created_at: datetime
    expires_at: datetime
    metadata: dict[str, str] | None = None
    output_expires_after_seconds: int | None = None
    weight: float = 1.0
    priority: int = 3  # 1 (first) to 5
    policy: BatchPolicy = BatchPolicy()
    origin: Origin | None = None


class BatchResult(Message):
    """What the workflow returns; the row holds the same."""

    status: BatchStatus
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: Usage = Usage()


class WaitingReason(Message):
    """Why a model's slices wait, told by a worker; an empty `reason` means they no longer do.

    Without a `model` it is the whole batch that waits.
    What `stays` is of the whole fleet: it holds until it is taken back, also while some lines settle.
    """

    model: str
    reason: str = ""
    since: datetime | None = None
    stays: bool = False


class ModelProgress(Message):
    model: str
    lines: int
    slices: int
    slices_done: int = 0


class BatchState(Message):
    """The answer to the workflow's `state` query; for operators and tests, the API reads the row."""

    status: BatchStatus
    paused: bool = False
    cancel_requested: bool = False
    models: list[ModelProgress] = []
    waiting: list[WaitingReason] = []
