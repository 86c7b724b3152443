"""Read the stored results of a slice's earlier attempts (turns), and its lines without a result."""

from dataclasses import dataclass, field

from batchwright.activities.execution.slice_state.line_queue import UNTRIED, LineAttempt, LineQueue, SliceLine
from batchwright.contracts.temporal_payloads.batch import ErrorCount
from batchwright.contracts.temporal_payloads.execution import SliceRequest
from batchwright.contracts.terms import Usage
from batchwright.inference.limits.prefix_cache_warmup import PrefixGroups
from batchwright.rules import ids
from batchwright.rules.planning.plan_format import (
    ENTRY_BYTES,
    SLICE_BYTES,
    PlanDamaged,
    SliceRecord,
    unpack_slice,
    walk_entries,
)
from batchwright.rules.results.error_tally import line_error
from batchwright.rules.results.segment_format import RecordKind, RecordLocation, locate_records
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import ObjectInfo, ObjectMissing, Storage, StorageUnavailable

_MAX_LISTINGS = 3


@dataclass
class StoredResults:
    """The results of the slice's earlier attempts, read from its segments (objects with many results).

    The keys of all three mappings are the lines' offsets in the input file.

    Attributes:
        settled: for each settled line, True if it succeeded, False if it failed.
        failures: the error of each settled line that failed.
        attempts: the latest stored record of the attempts of each line. Lines without such a record are
            missing.
    """

    segments: list[ObjectInfo] = field(default_factory=list[ObjectInfo])
    settled: dict[int, bool] = field(default_factory=dict[int, bool])  # by offset
    failures: dict[int, ErrorCount] = field(default_factory=dict[int, ErrorCount])
    attempts: dict[int, LineAttempt] = field(default_factory=dict[int, LineAttempt])
    usage: Usage = field(default_factory=Usage)

    def add(self, found: RecordLocation, data: bytes) -> None:
        if found.kind in (RecordKind.ATTEMPT, RecordKind.SUBMITTED):
            attempt = LineAttempt.model_validate_json(data[found.position : found.position + found.length])
            known = self.attempts.get(found.offset)
            if known is None or attempt.supersedes(known):
                self.attempts[found.offset] = attempt
        elif found.kind == RecordKind.SETTLED:
            known = self.settled.get(found.offset)
            if known is None or (found.success and not known):
                i, c, o, r = found.tokens
                self.usage += Usage(input_tokens=i, cached_tokens=c, output_tokens=o, reasoning_tokens=r)
                self.settled[found.offset] = found.success
                if found.success:
                    self.failures.pop(found.offset, None)
                else:
                    line = data[found.position : found.position + found.length]
                    self.failures[found.offset] = line_error(line)


async def read_stored_results(storage: Storage, folder: str) -> StoredResults:
    """Read the results of the slice's earlier attempts from all segments (stored objects) in `folder`.

    An earlier attempt that has lost the slice may still be merging segments. It replaces several segments by
    a new one, and deletes the old ones. If a segment disappears while it is read, the folder is listed again
    to find the new segment.

    Raises:
        SegmentDamaged: a segment is not readable.
        StorageUnavailable: storage does not respond, or segments disappeared again after each listing.
    """
    for _ in range(_MAX_LISTINGS):
        try:
            return await _read_listed(storage, folder)
        except ObjectMissing:
            continue
    raise StorageUnavailable(f"The segments below {folder!r} keep changing while they are read.")


async def _read_listed(storage: Storage, folder: str) -> StoredResults:
    stored = StoredResults(segments=[info async for info in storage.list(folder)])
    for info in stored.segments:
        data = await storage.get(info.key)
        for found in locate_records(data):
            stored.add(found, data)
    return stored


async def read_slice_record(storage: Storage, request: SliceRequest) -> SliceRecord:
    """Read the record of a slice. It says which part of the plan and of the shard belongs to the slice.

    The plan lists the model's lines in the order of sending. The shard holds the lines' JSON. A table in
    storage has the records of all slices of the model.

    Raises:
        PlanDamaged: the model's table of slices has no valid record of the slice.
        ObjectMissing, StorageUnavailable: the table cannot be read.
    """
    table = object_keys.slice_table(request.ingest_prefix, request.safe_model)
    return unpack_slice(await storage.get(table, request.number * SLICE_BYTES, SLICE_BYTES), request.number)


async def read_line_queue(
    storage: Storage,
    request: SliceRequest,
    record: SliceRecord,
    stored: StoredResults,
    prefixes: PrefixGroups,
    *,
    is_grouped: bool,
) -> LineQueue:
    """Read the slice's lines from storage. Return a queue of the lines that have no result yet.

    This takes two requests to storage. The first reads the slice's part of the plan, which lists the model's
    lines in the order of sending. The second reads the slice's lines in the shard, which holds their JSON.

    Args:
        prefixes: the model's prefix groups.
        is_grouped: True to send lines by prefix group (lines with the same system prompt); False to send them
            in the order of the plan.

    Raises:
        PlanDamaged: plan and shard do not match.
        ObjectMissing, StorageUnavailable: plan or shard cannot be read.
    """
    plan = object_keys.plan(request.ingest_prefix, request.safe_model)
    entries = await storage.get(plan, record.first_entry * ENTRY_BYTES, record.entries * ENTRY_BYTES)
    shard = object_keys.shard(request.ingest_prefix, request.safe_model)
    data = await storage.get(shard, record.shard_offset, record.shard_bytes)
    lines = _unsettled_lines(request, record, entries, data, stored)
    if is_grouped:
        for line in lines:
            line.prefix_group = line.prefix_hash
    return LineQueue(lines, prefixes)


def _unsettled_lines(
    request: SliceRequest, record: SliceRecord, entries: bytes, data: bytes, stored: StoredResults
) -> list[SliceLine]:
    planned = list(walk_entries(entries))
    if len(data) != record.shard_bytes or not len(planned) == record.entries == data.count(b"\n"):
        raise PlanDamaged(
            f"{request.batch_id}: plan and shard of {request.model!r} disagree at slice {record.number}"
        )
    request_ids, lines = ids.RequestIds(request.batch_id), list[SliceLine]()
    start = 0
    for offset, _, prefix_hash in planned:
        end = data.index(b"\n", start)
        if offset not in stored.settled:
            attempt = stored.attempts.get(offset, UNTRIED)
            request_id = request_ids.of(offset)
            lines.append(SliceLine(offset, data[start:end], request_id, attempt, prefix_hash=prefix_hash))
        start = end + 1
    if stored.attempts:
        lines.sort(key=lambda line: line.attempt.job is None)  # running jobs come first
    return lines
