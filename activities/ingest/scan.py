"""One pass over the input: what is wrong with it, or which lines go to which model."""

from array import array
from collections import Counter
from collections.abc import Callable

from activities.ingest.access import Access
from activities.ingest.adoption import Adoption
from activities.ingest.twins import Twins
from batchwright.contracts.openai import Endpoint, Profile
from batchwright.database.rows import ModelCount
from batchwright.rules.beginnings import NEEDED
from batchwright.rules.checks import Limits, Request
from batchwright.rules.findings import Code, Findings
from batchwright.rules.lines import Line, prompt_bytes
from batchwright.rules.ordering import ModelLines, PlanOrder, Prefixes
from batchwright.rules.prefix import prompt_of
from batchwright.rules.quotas import Enqueued, estimated_tokens
from batchwright.rules.slicing import work_units
from batchwright.rules.validation import Validation
from batchwright.settings import Settings

_SHOWN_NAME = 256  # characters of a model's name nobody serves
_NAMED = 100  # such models counted by name
_OTHERS = "(other models that are not served)"


def limits_of(settings: Settings) -> Limits:
    return Limits(
        max_lines=settings.max_lines,
        max_line_bytes=settings.max_line_bytes,
        max_embedding_inputs=settings.max_embedding_inputs,
        one_model=settings.one_model_per_batch,
    )


class Unserved:
    """Lines whose model is not served, or not to this tenant: where they are, and how many of which model."""

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.lengths = array("I")
        self._models: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, line: Line, model: str) -> None:
        self.offsets.append(line.offset)
        self.lengths.append(line.length)
        name = model[:_SHOWN_NAME]
        self._models[name if name in self._models or len(self._models) < _NAMED else _OTHERS] += 1

    def counts(self) -> list[ModelCount]:
        """Every one of them has failed already."""
        return [ModelCount(model=name, lines=lines, failed=lines) for name, lines in self._models.items()]


class Scanner:
    """Fed with the pieces of the input, by one thread at a time."""

    def __init__(
        self,
        endpoint: Endpoint,
        profile: Profile,
        settings: Settings,
        access: Access,
        adoption: Adoption | None = None,
        canonical: Callable[[str], str] = str,
        twins: Twins | None = None,
    ) -> None:
        """`canonical` gives the model that an alias stands for; `twins` keeps lines that ask the same."""
        self.closed = False  # the window is over: of a line only its place is needed
        self.twins = twins
        self.adoption = adoption
        self.models: dict[str, ModelLines] = {}
        self._planned: dict[str, str] = {}  # models of lines that are, by the names lines give them
        self.prefixes = Prefixes()
        self.unserved = Unserved()
        self._validation = Validation(endpoint, profile, limits_of(settings))
        self.findings: Findings = self._validation.findings
        self._settings = settings
        self._default_model = settings.default_model
        self._tokens = 0
        self._access, self._canonical = access, canonical

    @property
    def total(self) -> int:
        return self._validation.total

    @property
    def enqueued(self) -> Enqueued:
        """What is left to the workers."""
        adopted = self.adoption.lines if self.adoption else 0
        settled = len(self.unserved) + adopted + len(self.twins or ())
        return Enqueued(self._validation.total - settled, self._tokens)

    def feed(self, piece: bytes) -> None:
        if self._validation.full:
            return
        place = self._place
        for line, request in self._validation.feed(piece):
            place(line, request)

    def finish(self) -> None:
        for line, request in self._validation.finish():
            self._place(line, request)
        if self.adoption and not self.findings.count:
            self.adoption.finish()

    def _place(self, line: Line, request: Request) -> None:
        name = request.model or self._default_model
        model = self._planned.get(name) or self._canonical(name)
        if self.adoption and not self.findings.count and self.adoption.take(line.offset, model):
            return
        if name not in self._planned and self._access.refusal(model) is not None:
            self._refuse(line, model)
        elif not self.findings.count:  # a batch that fails is not planned
            self._planned[name] = model
            self._plan(line, request, model)

    def _refuse(self, line: Line, model: str) -> None:
        if not self._settings.strict_models:
            self.unserved.add(line, model)
            return
        message = f"The provided model '{model[:_SHOWN_NAME]}' is not supported by the Batch API."
        self.findings.add(Code.MODEL_NOT_FOUND, message, param="body.model", line=line.number)

    def _plan(self, line: Line, request: Request, model: str) -> None:
        lines = self.models.get(model)
        if lines is None:
            lines = self.models[model] = ModelLines(plan_order(self._settings))
        if self.closed:
            lines.add(line.offset, line.length, 0, 0, b"", 0)
            return
        if self.twins is not None and self.twins.take(line, model):
            return
        body, offset, length = request.body, line.offset, line.length
        asked = prompt_bytes(body)
        self._tokens += estimated_tokens(body, asked)
        prompt = prompt_of(body, NEEDED)
        prefix, prefix_hash = self.prefixes.intern(prompt, offset, length)
        note = self.prefixes.note(prefix, prompt.rest)
        lines.add(offset, length, prefix, prefix_hash, note, work_units(body, asked))


def plan_order(settings: Settings) -> PlanOrder:
    match settings.plan_order:
        case "hash":
            return "hash"
        case "file":
            return "file"
        case _:
            return "prefix"
