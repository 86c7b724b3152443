"""Choose the sender of a model's lines: the client of a backend, or a sender that joins lines into shared
requests.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Protocol, cast
from weakref import WeakKeyDictionary

from batchwright.contracts.model_registry.registry_config import LimitConfig
from batchwright.contracts.terms import Endpoint
from batchwright.inference.backend_client import RequestSender
from batchwright.inference.microbatch_sender import MicrobatchPolicy, MicrobatchSender, repeat_always
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.transport.base import Header, TargetUrl
from batchwright.rules.backends.chat_microbatch import ChatAdapter, ChatExecutor
from batchwright.rules.backends.microbatch import EmbeddingsAdapter, MicrobatchAdapter
from batchwright.rules.dispatch.retry_policy import backoff
from batchwright.settings import Settings, SettingsError
from batchwright.settings.value_formats import InvalidObjectReference, load_object
from batchwright.settings.worker_settings import ModelLimits
from batchwright.telemetry.metrics import Metrics

_NOT_REGISTERED = LimitConfig.model_validate({})
_DEFAULT_LIMITS = ModelLimits.model_validate({})


class MicrobatchBackend(Protocol):
    """A backend that may get microbatches: requests that each contain several lines."""

    @property
    def client(self) -> RequestSender: ...


class MicrobatchSenders:
    """A factory of senders. A sender joins several lines into one shared request (a microbatch).

    There is one object per process, so that lines of different batches can share requests. The constructor
    raises SettingsError if a chat executor is invalid. A chat executor is the operator's object that joins
    chat requests and splits their responses.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._executors = load_chat_executors(settings)
        self._pause = partial(
            backoff, initial=settings.initial_backoff_seconds, longest=settings.max_backoff_seconds
        )
        # A backend's senders are dropped when the backend is dropped.
        self._senders: WeakKeyDictionary[MicrobatchBackend, dict[tuple[str, Endpoint], MicrobatchSender]] = (
            WeakKeyDictionary()
        )

    def is_enabled(self, model: str, endpoint: Endpoint, registered: LimitConfig) -> bool:
        """Return True if lines of the model share requests at this endpoint, False if each is sent alone.

        Args:
            registered: the model's limits in the operator's list of models (the registry), which override the
                settings.
        """
        return bool(self._adapter(model, endpoint) and self._policy(model, registered))

    def sender_for(
        self,
        backend: MicrobatchBackend,
        model: str,
        endpoint: Endpoint,
        registered: LimitConfig = _NOT_REGISTERED,
        tenant: str = "",
        may_repeat: Callable[[], bool] = repeat_always,
    ) -> RequestSender:
        """Return the sender of a model's lines to one of its backends.

        If each line is sent in a request of its own, the result is the client of the backend.

        Args:
            endpoint: endpoint of the batch.
            registered: the model's limits in the operator's list of models (the registry), which override the
                settings.
            tenant: tenant of the lines. If it is empty, or if the setting `tenants_share_requests` is on,
                lines of different tenants may share a request.
            may_repeat: called for each line of a failed shared request, before the line is sent again. If the
                result is False, the line is not sent, and `send` raises NotSent for it.
        """
        adapter, policy = self._adapter(model, endpoint), self._policy(model, registered)
        if adapter is None or policy is None:
            return backend.client
        senders = self._senders.setdefault(backend, {})
        sender = senders.get((model, endpoint))
        if sender is None or sender.policy != policy:
            sender = MicrobatchSender(backend.client, adapter, policy, self._metrics)
            senders[model, endpoint] = sender
        is_shared = not tenant or self._settings.tenants_share_requests
        if is_shared and may_repeat is repeat_always:
            return sender
        return SliceSender(sender, "" if is_shared else tenant, may_repeat)

    def _policy(self, model: str, registered: LimitConfig) -> MicrobatchPolicy | None:
        """Return the limits for shared requests of the model; None if each line is sent alone."""
        own = self._settings.models.get(model, _DEFAULT_LIMITS)
        lines = registered.inputs_per_request or own.inputs_per_request
        if lines == 1:
            return None
        tokens = registered.input_tokens_per_request or own.input_tokens_per_request
        return MicrobatchPolicy(model, lines, tokens, self._pause)

    def _adapter(self, model: str, endpoint: Endpoint) -> MicrobatchAdapter | None:
        if endpoint is Endpoint.EMBEDDINGS:
            return EmbeddingsAdapter()
        if endpoint is Endpoint.CHAT_COMPLETIONS and model in self._executors:
            return ChatAdapter(self._executors[model])
        return None


def load_chat_executors(settings: Settings) -> dict[str, ChatExecutor]:
    """Import the chat executors that the settings name, and return them by model.

    A chat executor is the operator's object that joins chat requests and splits their responses.

    Raises:
        SettingsError: an executor cannot be imported, or has no method `join` or `split`.
    """
    named = {model: limits.chat_executor for model, limits in settings.models.items() if limits.chat_executor}
    return {model: _load_chat_executor(model, reference) for model, reference in named.items()}


def _load_chat_executor(model: str, reference: str) -> ChatExecutor:
    setting = f"BATCHWRIGHT_MODELS is wrong: chat_executor of {model!r}"
    try:
        found = load_object(reference)
    except InvalidObjectReference as error:
        raise SettingsError(f"{setting}: {error}.") from error
    for name in ("join", "split"):
        if not callable(getattr(found, name, None)):
            raise SettingsError(f"{setting}: {reference!r} has no method {name!r}.")
    return cast("ChatExecutor", found)


class SliceSender:
    """A sender for the lines of one slice, which may share requests with lines of other slices.

    Only slices with an equal `tenant` share requests. `tenant` is empty if lines of different tenants may
    share a request.
    """

    def __init__(self, sender: "MicrobatchSender", tenant: str, may_repeat: Callable[[], bool]) -> None:
        self._sender, self._tenant, self._may_repeat = sender, tenant, may_repeat

    def send(
        self, target: TargetUrl, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Coroutine[None, None, Outcome]:
        """Send one line and return its outcome. `MicrobatchSender.send` explains the parameters."""
        return self._sender.send(target, body, request_id, extra, self._tenant, self._may_repeat)
