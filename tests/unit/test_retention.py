"""What may be deleted, and what never."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules import keys
from batchwright.rules.ids import derived_file_id
from batchwright.rules.retention import WRITER, Area, Known, Owner, Written, horizons, orphans, owner_of

NOW = datetime(2026, 11, 21, tzinfo=UTC)
BEFORE = NOW - timedelta(days=2)
TENANT = "acme"
HOURS = st.integers(0, 200)
IDS = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def an_object(draw: st.DrawFn) -> Written:
    """Of a file, an output, an upload, a batch, or of nothing we know."""
    id, nonce = draw(IDS), draw(st.sampled_from(["1", "2"]))
    key = draw(
        st.sampled_from(
            [
                keys.upload_key(TENANT, id, nonce),
                keys.output_key(TENANT, derived_file_id(id, "output"), nonce),
                keys.output_key(TENANT, derived_file_id(id, "error"), nonce),
                keys.part_key(TENANT, id, nonce),
                keys.plan(keys.ingest_prefix(TENANT, id, nonce), "m"),
                keys.segment(keys.slice_results(TENANT, id, "m", 0), 0, 1, nonce, 1),
                f"{keys.tenant_root(TENANT)}notes/{id}/{nonce}",
                f"{keys.tenant_root(TENANT)}{id}",
                keys.DATABASE_MARK,
            ]
        )
    )
    return Written(key, NOW - timedelta(hours=draw(HOURS)))


KNOWN = st.builds(
    Known,
    files=st.dictionaries(
        IDS, st.sampled_from([keys.upload_key(TENANT, id, "1") for id in ("a", "b", "c")]), max_size=3
    ),
    open_uploads=st.frozensets(IDS),
    live_batches=st.frozensets(IDS),
)


@given(st.lists(an_object()), KNOWN)
def test_what_is_young_stays(objects: list[Written], known: Known) -> None:
    young = [found for found in objects if found.at >= BEFORE]
    assert orphans(young, known, BEFORE) == []


@given(st.lists(an_object()), KNOWN)
def test_what_a_row_names_stays(objects: list[Written], known: Known) -> None:
    named = {key for id, key in known.files.items() if key == keys.upload_key(TENANT, id, "1")}
    assert named.isdisjoint(orphans(objects, known, NOW))


@given(st.lists(an_object()), KNOWN)
def test_what_a_live_batch_may_be_writing_stays(objects: list[Written], known: Known) -> None:
    spared = [keys.batch_root(TENANT, batch) + "/" for batch in known.live_batches]
    spared += [
        keys.output_key(TENANT, derived_file_id(batch, kind), "")
        for batch in known.live_batches
        for kind in ("output", "error")
    ]
    assert not [key for key in orphans(objects, known, NOW) if key.startswith(tuple(spared))]


@given(st.lists(an_object()), KNOWN)
def test_keys_that_none_of_ours_looks_like_stay(objects: list[Written], known: Known) -> None:
    assert all(owner_of(key) is not None for key in orphans(objects, known, NOW))


@given(st.lists(an_object()))
def test_of_a_tenant_without_rows_all_that_is_old_and_ours_goes(objects: list[Written]) -> None:
    nothing = Known(files={}, open_uploads=frozenset(), live_batches=frozenset())
    expected = [found.key for found in objects if found.at < BEFORE and owner_of(found.key) is not None]
    assert orphans(objects, nothing, BEFORE) == expected


def test_a_key_tells_whose_it_is() -> None:
    assert owner_of(keys.upload_key(TENANT, "file-1", "n")) == Owner(Area.FILES, "file-1")
    assert owner_of(keys.part_key(TENANT, "upload_1", "p")) == Owner(Area.UPLOADS, "upload_1")
    assert owner_of(keys.shard(keys.ingest_prefix(TENANT, "batch_1", "n"), "m")) == Owner(
        Area.BATCHES, "batch_1"
    )
    assert owner_of(keys.DATABASE_MARK) is None


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_no_horizon_is_nearer_than_the_longest_writer_allows(grace: int, metadata: int, litter: int) -> None:
    found = horizons(
        NOW,
        grace=timedelta(seconds=grace),
        metadata=timedelta(seconds=metadata),
        orphans=timedelta(seconds=litter),
    )
    assert max(found.batches, found.metadata, found.orphans) <= NOW - WRITER
    assert found.files == found.uploads == NOW - timedelta(seconds=grace)
