"""What sends a model's lines: each in a request of its own, or several in one where its settings say so."""

from typing import Protocol, cast

from batchwright.contracts.openai import Endpoint
from batchwright.inference.grouping import GroupingSender, Sender
from batchwright.inference.importing import NotImportable, imported
from batchwright.inference.routes import Sends
from batchwright.rules.chat_groups import ChatExecutor, Chats
from batchwright.rules.microbatch import Adapter, Embeddings
from batchwright.rules.retries import backoff
from batchwright.settings import Settings, SettingsError
from batchwright.settings.worker import ModelLimits
from batchwright.telemetry.metrics import Metrics


def chat_executors(settings: Settings) -> dict[str, ChatExecutor]:
    """By model, those that the settings name.

    Raises:
        SettingsError: one cannot be imported, or has no `join` or `split`.
    """
    named = {model: limits.chat_executor for model, limits in settings.models.items() if limits.chat_executor}
    return {model: _executor(model, reference) for model, reference in named.items()}


def _executor(model: str, reference: str) -> ChatExecutor:
    place = f"BATCHWRIGHT_MODELS is wrong: chat_executor of {model!r}"
    try:
        found = imported(reference)
    except NotImportable as error:
        raise SettingsError(f"{place}: {error}.") from error
    for name in ("join", "split"):
        if not callable(getattr(found, name, None)):
            raise SettingsError(f"{place}: {reference!r} has no method {name!r}.")
    return cast("ChatExecutor", found)


class Grouped(Protocol):
    """A backend, and what groups lines for it: they are gone together."""

    @property
    def client(self) -> Sender: ...
    @property
    def grouping(self) -> dict[tuple[str, Endpoint], Sends]: ...


class Senders:
    """One a process, so that lines of all slices of a model meet. Raises SettingsError when made."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._executors = chat_executors(settings)

    def joins(self, model: str, endpoint: Endpoint) -> bool:
        """Whether lines of the model share requests; where they do not, each backend's client sends them."""
        return self._joining(model, endpoint) is not None

    def of(self, backend: Grouped, model: str, endpoint: Endpoint) -> Sends:
        """For lines of `model` that go to one of its backends."""
        plain = backend.client
        joining = self._joining(model, endpoint)
        if joining is None:
            return plain
        key = (model, endpoint)
        found = backend.grouping.get(key)
        if found is None:
            found = backend.grouping[key] = self._group(plain, model, *joining)
        return found

    def _joining(self, model: str, endpoint: Endpoint) -> tuple[ModelLimits, Adapter] | None:
        limits = self._settings.models.get(model)
        if limits is None or limits.inputs_per_request == 1:
            return None
        adapter = self._adapter(model, endpoint)
        return None if adapter is None else (limits, adapter)

    def _adapter(self, model: str, endpoint: Endpoint) -> Adapter | None:
        if endpoint is Endpoint.EMBEDDINGS:
            return Embeddings()
        if endpoint is Endpoint.CHAT_COMPLETIONS and model in self._executors:
            return Chats(self._executors[model])
        return None

    def _group(self, plain: Sender, model: str, limits: ModelLimits, adapter: Adapter) -> GroupingSender:
        first, longest = self._settings.initial_backoff_seconds, self._settings.max_backoff_seconds
        return GroupingSender(
            plain,
            adapter,
            model=model,
            most=limits.inputs_per_request,
            tokens=limits.input_tokens_per_request,
            pause=lambda failures: backoff(failures, initial=first, longest=longest),
            metrics=self._metrics,
        )
