"""A process that is killed while retention deletes objects."""

import pytest

from batchwright.contracts.temporal_payloads.retention import RetentionKind
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.ids import derived_file_id
from batchwright.rules.stored_objects import object_keys
from tests.activities.retention.test_retention import NOW, RetentionFixture


class ProcessKilled(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("deletions", [0, 1, 2])
async def test_a_second_run_deletes_what_is_left_if_the_process_is_killed_between_two_deletions(
    monkeypatch: pytest.MonkeyPatch, deletions: int
) -> None:
    fixture = RetentionFixture()
    await fixture.batch("batch_1", status=BatchStatus.FAILED)
    root = object_keys.ingest_prefix("t", "batch_1", "n")
    keys = {fixture.write(object_keys.plan(root, model)) for model in ("a", "b")}
    keys.add(fixture.write(object_keys.output_key("t", derived_file_id("batch_1", "output"), "late")))
    storage, delete = fixture.storage, fixture.storage.delete

    async def delete_or_die(key: str) -> None:
        if len(storage.deleted) == deletions:
            raise ProcessKilled
        await delete(key)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "delete", delete_or_die)
        with pytest.raises(ProcessKilled):
            await fixture.retention.run(RetentionKind.BATCHES, NOW)
    assert len(fixture.objects) == 3 - deletions
    assert (await fixture.retention.run(RetentionKind.BATCHES, NOW)).count == 3 - deletions
    assert (fixture.objects, set(storage.deleted)) == (set(), keys)
    assert (await fixture.retention.run(RetentionKind.BATCHES, NOW)).count == 0
