"""URLs of objects, and the prefixes in which they may be."""

import pytest

from batchwright.rules.stored_objects.object_locations import (
    ObjectLocation,
    is_within,
    parse_object,
    parse_prefix,
)
from batchwright.settings.error_messages import SettingsError
from tests.fakes.settings import load


def test_a_url_names_a_bucket_and_a_key() -> None:
    location = parse_object("s3://data/team-a/day=1/ü.jsonl.gz")
    assert location == ObjectLocation("data", "team-a/day=1/ü.jsonl.gz")
    assert location.name == "ü.jsonl.gz"


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3://data",
        "s3://data/",
        "s3:///key",
        "s3://Data/key",
        "s3://user:secret@data/key",
        "s3://data/a//b",
        "s3://data/../key",
        "s3://data/a/./b",
        "s3://data/a/..",
        "s3://data/a/",
        "s3://data/a\nb",
        "s3://data/" + "a" * 1025,
        "https://data/key",
        "file:///data/key",
    ],
)
def test_other_urls_name_no_object(url: str) -> None:
    with pytest.raises(ValueError, match=r"must|may"):
        parse_object(url)


@pytest.mark.parametrize("bucket", ["a", "My-Data", "my_data", "x" * 64, "user:secret@data"])
def test_a_bucket_that_cannot_exist_is_named_as_the_reason_without_its_text(bucket: str) -> None:
    reason = "its bucket must have 3 to 63 small letters, digits, '.' or '-'"
    with pytest.raises(ValueError, match=f"^{reason}$"):
        parse_object(f"s3://{bucket}/key")
    with pytest.raises(ValueError, match=f"does not have the form s3://bucket/prefix/: {reason}$"):
        parse_prefix(f"s3://{bucket}/prefix")


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("s3://data/team-a/x", True),
        ("s3://data/team-a/y/x", True),
        ("s3://data/team-ab/x", False),
        ("s3://data/team-a", False),
        ("s3://data2/team-a/x", False),
        ("s3://own/x", True),
    ],
)
def test_a_location_is_a_whole_folder_or_a_whole_bucket(url: str, is_allowed: bool) -> None:
    for prefixes in (["s3://data/team-a", "s3://own"], ["s3://data/team-a/", "s3://own/"]):
        assert is_within(parse_object(url), map(parse_prefix, prefixes)) is is_allowed


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("own", ["s3://data", "s3://data/team-a", "s3://data/team-a/deep"])
def test_no_tenant_may_use_the_storage_of_batchwright(own: str, access: str) -> None:
    with pytest.raises(SettingsError, match="could read or replace the files of all tenants"):
        load(storage=own, data_locations={"blue": {access: ["s3://data/team-a/"]}})
    load(storage="s3://data/batches", data_locations={"blue": {access: ["s3://data/team-a/"]}})


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("url", ["s3://", "s3://data//x", "s3://data/../", "data/x", "s3://data/*?\n"])
def test_a_wrong_location_is_refused_at_the_start(url: str, access: str) -> None:
    with pytest.raises(SettingsError, match="BATCHWRIGHT_DATA_LOCATIONS"):
        load(data_locations={"blue": {access: [url]}})
