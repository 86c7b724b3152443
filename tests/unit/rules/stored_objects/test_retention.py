"""Retention decisions: which objects may be deleted, and which must never be deleted."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules.ids import derived_file_id
from batchwright.rules.stored_objects import object_keys
from batchwright.rules.stored_objects.retention import (
    MAX_WRITE_TIME,
    KnownObjects,
    ObjectOwner,
    TenantFolder,
    WrittenObject,
    orphaned_keys,
    owner_of,
    retention_cutoffs,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
BEFORE = NOW - timedelta(days=2)
TENANT = "acme"
HOURS = st.integers(0, 200)
IDS = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def an_object(draw: st.DrawFn) -> WrittenObject:
    """Strategy for stored objects: files, outputs, uploads, objects of batches, and unknown objects."""
    id, nonce = draw(IDS), draw(st.sampled_from(["1", "2"]))
    key = draw(
        st.sampled_from(
            [
                object_keys.upload_key(TENANT, id, nonce),
                object_keys.output_key(TENANT, derived_file_id(id, "output"), nonce),
                object_keys.output_key(TENANT, derived_file_id(id, "error"), nonce),
                object_keys.part_key(TENANT, id, nonce),
                object_keys.plan(object_keys.ingest_prefix(TENANT, id, nonce), "m"),
                object_keys.segment(object_keys.slice_results(TENANT, id, "m", 0), 0, 1, nonce, 1),
                f"{object_keys.tenant_root(TENANT)}notes/{id}/{nonce}",
                f"{object_keys.tenant_root(TENANT)}{id}",
                object_keys.DATABASE_MARK,
            ]
        )
    )
    return WrittenObject(key, NOW - timedelta(hours=draw(HOURS)))


KNOWN = st.builds(
    KnownObjects,
    files=st.dictionaries(
        IDS, st.sampled_from([object_keys.upload_key(TENANT, id, "1") for id in ("a", "b", "c")]), max_size=3
    ),
    open_uploads=st.frozensets(IDS),
    live_batches=st.frozensets(IDS),
)


@given(st.lists(an_object()), KNOWN)
def test_young_objects_are_kept(objects: list[WrittenObject], known: KnownObjects) -> None:
    young = [found for found in objects if found.at >= BEFORE]
    assert orphaned_keys(young, known, BEFORE) == []


@given(st.lists(an_object()), KNOWN)
def test_objects_named_by_a_row_are_kept(objects: list[WrittenObject], known: KnownObjects) -> None:
    named = {key for id, key in known.files.items() if key == object_keys.upload_key(TENANT, id, "1")}
    assert named.isdisjoint(orphaned_keys(objects, known, NOW))


@given(st.lists(an_object()), KNOWN)
def test_objects_that_a_live_batch_may_be_writing_are_kept(
    objects: list[WrittenObject], known: KnownObjects
) -> None:
    spared = [object_keys.batch_root(TENANT, batch) + "/" for batch in known.live_batches]
    spared += [
        object_keys.output_key(TENANT, derived_file_id(batch, kind), "")
        for batch in known.live_batches
        for kind in ("output", "error")
    ]
    assert not [key for key in orphaned_keys(objects, known, NOW) if key.startswith(tuple(spared))]


@given(st.lists(an_object()), KNOWN)
def test_objects_with_foreign_keys_are_kept(objects: list[WrittenObject], known: KnownObjects) -> None:
    assert all(owner_of(key) is not None for key in orphaned_keys(objects, known, NOW))


@given(st.lists(an_object()))
def test_old_objects_of_a_tenant_without_rows_are_deleted(objects: list[WrittenObject]) -> None:
    nothing = KnownObjects(files={}, open_uploads=frozenset(), live_batches=frozenset())
    expected = [found.key for found in objects if found.at < BEFORE and owner_of(found.key) is not None]
    assert orphaned_keys(objects, nothing, BEFORE) == expected


def test_an_object_key_names_its_owner() -> None:
    assert owner_of(object_keys.upload_key(TENANT, "file-1", "n")) == ObjectOwner(
        TenantFolder.FILES, "file-1"
    )
    assert owner_of(object_keys.part_key(TENANT, "upload_1", "p")) == ObjectOwner(
        TenantFolder.UPLOADS, "upload_1"
    )
    assert owner_of(object_keys.shard(object_keys.ingest_prefix(TENANT, "batch_1", "n"), "m")) == ObjectOwner(
        TenantFolder.BATCHES, "batch_1"
    )
    assert owner_of(object_keys.DATABASE_MARK) is None


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_no_retention_age_is_shorter_than_the_longest_write(grace: int, metadata: int, litter: int) -> None:
    found = retention_cutoffs(
        NOW,
        grace=timedelta(seconds=grace),
        metadata=timedelta(seconds=metadata),
        audit_log=timedelta(days=1),
        orphans=timedelta(seconds=litter),
    )
    assert max(found.batches, found.metadata, found.orphans) <= NOW - MAX_WRITE_TIME
    assert found.files == found.uploads == NOW - timedelta(seconds=grace)
