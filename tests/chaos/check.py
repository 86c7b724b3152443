"""Checks that each ended batch must pass, even though the stack was disturbed while the batch ran."""

from collections import Counter
from dataclasses import dataclass, field

from openai.types import Batch
from pydantic import BaseModel

from tests.chaos.load import Seen
from tests.chaos.user import User
from tests.e2e.batches import ResultLine

# Statuses only go on to a later one; a poll may miss some.
_RANKS = {"validating": 0, "in_progress": 1, "finalizing": 2, "cancelling": 3}
_LAST = 4
_TIMES = ("created_at", "in_progress_at", "finalizing_at")
_CANCEL_TIMES = ("created_at", "cancelling_at")
_CRASHED = "worker_crashed"
_ENDS = ("completed_at", "expired_at", "cancelled_at", "failed_at")


class _Usage(BaseModel):
    """The token usage of a batch or of an answer. Only an answer to `/v1/messages` has no `total_tokens`."""

    total_tokens: int | None = None
    input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0

    @property
    def total(self) -> int:
        parts = self.input_tokens + self.cache_read_input_tokens + self.output_tokens
        return parts if self.total_tokens is None else self.total_tokens


class _WithUsage(BaseModel):
    usage: _Usage


class _Answer(BaseModel):
    body: _WithUsage


@dataclass
class Verdict:
    """The result of the checks of one batch.

    Attributes:
        lost: number of lines that are in neither the output file nor the error file.
        doubled: number of lines that are in the files more than once.
        crashed: number of lines that failed because workers ended while the line was in flight.
        broken: a sentence for each failed check.
        requests: ids of the requests with a final response of a backend.
    """

    seen: Seen
    status: str
    lines: int = 0
    lost: int = 0
    doubled: int = 0
    crashed: int = 0
    broken: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])


async def judge(user: User, seen: Seen, batch: Batch) -> Verdict:
    verdict = Verdict(seen, batch.status)
    output = await lines_of(user, batch.output_file_id)
    errors = await lines_of(user, batch.error_file_id)
    _check_history(verdict, batch)
    if batch.status == "cancelled" and not output and not errors:
        return verdict  # cancelled while it was validated: no files
    _check_conservation(verdict, batch, output, errors)
    _check_fates(verdict, output, errors)
    _check_usage(verdict, batch, output)
    verdict.requests = [line.id for line in (*output, *errors) if line.response is not None]
    return verdict


async def lines_of(user: User, file_id: str | None) -> list[ResultLine]:
    return [ResultLine.model_validate_json(line) for line in (await user.content(file_id)).splitlines()]


def _check_history(verdict: Verdict, batch: Batch) -> None:
    statuses, ending = verdict.seen.statuses, verdict.seen.submission.ending
    ranks = [_RANKS.get(status, _LAST) for status in statuses]
    if ranks != sorted(set(ranks)):
        verdict.broken.append(f"went through {' -> '.join(statuses)}")
    if "cancelling" in statuses and batch.status != "cancelled":
        verdict.broken.append(f"was cancelling and ended as {batch.status}")
    if batch.status not in {"completed", ending}:
        verdict.broken.append(f"ended as {batch.status}: {batch.errors}")
    reported = batch.model_dump()
    for names in (_TIMES, _CANCEL_TIMES):
        times = [reported[name] for name in (*names, *_ENDS) if reported[name] is not None]
        if times != sorted(times):
            verdict.broken.append(f"times go back: {times}")


def _check_conservation(
    verdict: Verdict, batch: Batch, output: list[ResultLine], errors: list[ResultLine]
) -> None:
    order = {custom_id: place for place, custom_id in enumerate(verdict.seen.submission.fates)}
    found = Counter(line.custom_id for line in (*output, *errors))
    verdict.lines = len(order)
    verdict.lost = len(order.keys() - found.keys())
    verdict.doubled = sum(count - 1 for count in found.values())
    if verdict.lost or verdict.doubled or found.keys() - order.keys():
        verdict.broken.append(f"{verdict.lost} lines lost, {verdict.doubled} doubled")
        return
    for name, file in (("output", output), ("errors", errors)):
        places = [order[line.custom_id] for line in file]
        if places != sorted(places):
            verdict.broken.append(f"the lines of {name} are not in the order of the input")
    counts = batch.request_counts
    if counts is None or (counts.total, counts.completed, counts.failed) != (
        len(order), len(output), len(errors)
    ):  # fmt: skip
        verdict.broken.append(f"counts are {counts}, files hold {len(output)} and {len(errors)}")


def _check_fates(verdict: Verdict, output: list[ResultLine], errors: list[ResultLine]) -> None:
    became = {line.custom_id: _fate(line) for line in (*output, *errors)}
    verdict.crashed = sum(fate == _CRASHED for fate in became.values())
    excused = {_CRASHED}
    if verdict.status in ("cancelled", "expired"):
        excused.add(f"batch_{verdict.status}")
    wrong = Counter(
        f"{fate} -> {became.get(custom_id)}"
        for custom_id, fate in verdict.seen.submission.fates.items()
        if became.get(custom_id) not in {fate, *excused}
    )
    if wrong:
        verdict.broken.append(f"lines became something else: {dict(wrong)}")


def _fate(line: ResultLine) -> str:
    if line.response is not None:
        status = line.response.status_code
        return {200: "answered", 400: "refused"}.get(status, f"status {status}")
    if line.error is None:
        return "neither response nor error"
    return "unserved" if line.error.code == "model_not_found" else line.error.code


def _check_usage(verdict: Verdict, batch: Batch, output: list[ResultLine]) -> None:
    reported = _WithUsage.model_validate(batch.model_dump()).usage.total
    summed = sum(
        _Answer.model_validate(line.response.model_dump()).body.usage.total
        for line in output
        if line.response is not None
    )
    if reported != summed:
        verdict.broken.append(f"usage says {reported} tokens, the lines {summed}")
