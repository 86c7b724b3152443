"""Scan the input in one pass: find errors, and divide the lines by model."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from batchwright.activities.ingestion.duplicate_detection import DuplicateDetector
from batchwright.activities.ingestion.resumption import ResumedResults
from batchwright.activities.services.model_access import ModelAccess, display_name
from batchwright.contracts.errors import LineCode
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchPolicy, ModelCounts, StartForecast
from batchwright.rules.deadline import Deadline
from batchwright.rules.growing_bytes import NewBytes
from batchwright.rules.input.custom_id_search import CustomIdIndex
from batchwright.rules.input.input_validator import CheckedLine, InputValidator
from batchwright.rules.input.line_rules import AcceptedRequest, InputLimits, RejectedRequest
from batchwright.rules.input.line_splitter import InputLine
from batchwright.rules.input.validation_errors import ValidationCode, ValidationErrors
from batchwright.rules.planning.prefix_order import ModelLines, PlanOrder, PromptPrefixes
from batchwright.rules.planning.prompt_sort_keys import NEEDED_TEXT_BYTES
from batchwright.rules.planning.request_work import estimate_tokens, prompt_bytes, work_units
from batchwright.rules.planning.shared_prefix import prompt_of
from batchwright.rules.tenants.quotas import EnqueuedWork
from batchwright.settings import Settings

_MAX_NAMED_MODELS = 100  # models that are counted by name; the others are counted together
_OTHER_MODELS = "(other models that are not served)"
_UNLIMITED = 2**31
_PLAIN = BatchPolicy()


@dataclass(frozen=True)
class IngestionContext:
    """The data about a batch that all parts of one ingestion attempt use.

    `order` is the message that started the batch's workflow.
    """

    order: BatchOrder
    settings: Settings
    access: ModelAccess
    deadline: Deadline  # after it, the input is still validated, but not prepared for sending
    start_forecast: StartForecast | None  # forecast that an earlier attempt has stored
    prices: Mapping[str, PriceConfig] | None  # prices by model that an earlier attempt has stored


def line_limits(settings: Settings, policy: BatchPolicy = _PLAIN) -> InputLimits:
    """Return the limits for the input of a batch.

    They limit the number and the size of lines. For a rolling batch, whose lines are single requests of
    clients, only the length of each line is limited.
    """
    if policy.rolling is not None:
        return InputLimits(_UNLIMITED, settings.max_line_bytes, _UNLIMITED, bodies_fail_alone=True)
    limits = settings.input_limits._replace(bodies_fail_alone=policy.lines_fail_alone)
    if policy.message_requests:
        return limits._replace(max_lines=settings.max_message_requests)
    return limits


class UnservedLines:
    """The positions and counts of the lines that fail during ingestion and are therefore never sent.

    A line fails during ingestion if no backend serves its model, or if the tenant may not use its model. In a
    batch of the Messages API and in a rolling batch (whose lines are single calls of clients), a line with an
    invalid body also fails during ingestion.
    """

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.lengths = array("I")
        self.codes: Counter[LineCode] = Counter()
        self._models: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, line: InputLine, model: str, code: LineCode) -> None:
        self.codes[code] += 1
        self.offsets.append(line.offset)
        self.lengths.append(line.length)
        name = display_name(model)
        self._models[
            name if name in self._models or len(self._models) < _MAX_NAMED_MODELS else _OTHER_MODELS
        ] += 1

    def counts(self) -> list[ModelCounts]:
        """Return how many lines failed during ingestion, by model."""
        return [ModelCounts(model=name, lines=lines, failed=lines) for name, lines in self._models.items()]


class Scanner:
    """A scanner that validates the lines of the input and divides them by model.

    It receives the bytes of the input piece by piece. It is not thread-safe.
    """

    def __init__(
        self,
        context: IngestionContext,
        canonical: Callable[[str], str],
        resumed: ResumedResults | None,
        new_bytes: NewBytes,
    ) -> None:
        """Create a scanner.

        Args:
            canonical: returns the model for an alias, and any other name unchanged.
            resumed: the results to reuse; None if the batch does not resume another batch.
            new_bytes: creates a growing array of bytes, which may be on the local disk.
        """
        order, settings = context.order, context.settings
        self.deadline_passed = False  # if True, only the positions of lines are recorded
        self.duplicates = DuplicateDetector() if order.policy.deduplicate else None
        self.resumed = resumed
        self.models: dict[str, ModelLines] = {}
        self.prefixes = PromptPrefixes()
        self.unserved = UnservedLines()
        # Rolling batches are in no list, so nobody looks for their lines there.
        self.custom_ids = None if order.policy.rolling is not None else CustomIdIndex(new_bytes)
        self._lines_fail_alone = order.policy.lines_fail_alone
        limits = line_limits(settings, order.policy)
        self._validator = InputValidator(order.endpoint, order.policy.profile, limits, new_bytes)
        self._new_bytes = new_bytes
        self.errors: ValidationErrors = self._validator.errors
        self._settings = settings
        self._default_model = settings.default_model
        self._access, self._canonical = context.access, canonical
        self._planned: dict[str, str] = {}  # models that can run, by the name or alias that lines use
        self._tokens = 0

    @property
    def total(self) -> int:
        return self._validator.total

    @property
    def enqueued(self) -> EnqueuedWork:
        """Number of lines that have to be sent, and an estimate of their tokens."""
        resumed = self.resumed.lines if self.resumed else 0
        settled = len(self.unserved) + resumed + len(self.duplicates or ())
        return EnqueuedWork(self._validator.total - settled, self._tokens)

    def feed(self, piece: bytes) -> None:
        if self._validator.is_full:
            return
        self._assign_all(self._validator.feed(piece))

    def finish(self) -> None:
        self._assign_all(self._validator.finish())
        if self.resumed and not self.errors.count:
            self.resumed.finish()

    def _assign_all(self, checked: Iterator[CheckedLine]) -> None:
        assign, custom_ids = self._assign, list[str]()
        for line, request in checked:
            custom_ids.append(request.custom_id)
            assign(line, request)
        if self.custom_ids is not None:
            self.custom_ids.add_all(custom_ids)

    def _assign(self, line: InputLine, request: AcceptedRequest | RejectedRequest) -> None:
        if isinstance(request, RejectedRequest):
            self._assign_rejected(line, request)
            return
        name = request.model or self._default_model
        model = self._planned.get(name) or self._canonical(name)
        if self.resumed and not self.errors.count and self.resumed.copy_result(line.offset, model):
            return
        rejection = self._access.rejection_code(model) if name not in self._planned else None
        if rejection is not None:
            self._reject(line, model, rejection)
        elif not self.errors.count:  # with an error, the batch fails and is not planned
            self._planned[name] = model
            self._plan(line, request, model)

    def _assign_rejected(self, line: InputLine, request: RejectedRequest) -> None:
        model = self._canonical(request.model or "")
        resumes = self.resumed is not None and not self.errors.count
        if not (resumes and self.resumed and self.resumed.copy_result(line.offset, model)):
            self.unserved.add(line, model, LineCode.INVALID_REQUEST)

    def _reject(self, line: InputLine, model: str, code: LineCode) -> None:
        if not self._settings.strict_models or self._lines_fail_alone:
            self.unserved.add(line, model, code)
            return
        message = f"The provided model '{display_name(model)}' is not supported by the Batch API."
        self.errors.add(ValidationCode.MODEL_NOT_FOUND, message, param="body.model", line=line.number)

    def _plan(self, line: InputLine, request: AcceptedRequest, model: str) -> None:
        lines = self.models.get(model)
        if lines is None:
            max_models = self._settings.max_models_per_batch
            if len(self.models) == max_models:
                message = f"The batch names more than {max_models} models. Split it into several batches."
                self.errors.add(ValidationCode.TOO_MANY_MODELS, message, param="body.model", line=line.number)
                return
            lines = self.models[model] = ModelLines(plan_order(self._settings), self._new_bytes)
        if self.deadline_passed:
            lines.add(line.offset, line.length, 0, 0, b"", 0)
            return
        if self.duplicates is not None and self.duplicates.add(line, model):
            return
        body, offset, length = request.body, line.offset, line.length
        size = prompt_bytes(body)
        self._tokens += estimate_tokens(body, size)
        prompt = prompt_of(body, NEEDED_TEXT_BYTES)
        prefix, prefix_hash = self.prefixes.intern(prompt, offset, length)
        sort_key = self.prefixes.sort_key(prefix, prompt.rest)
        lines.add(offset, length, prefix, prefix_hash, sort_key, work_units(body, size))


def plan_order(settings: Settings) -> PlanOrder:
    match settings.plan_order:
        case "hash":
            return "hash"
        case "file":
            return "file"
        case _:
            return "prefix"
