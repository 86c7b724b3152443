"""Filters of the list of batches: accepted values, and messages for all others."""

from datetime import UTC, datetime

import pytest

from batchwright.contracts.terms import BatchStatus
from batchwright.rules.batch_filters import (
    MAX_CUSTOM_ID_CHARACTERS,
    MAX_METADATA_PAIRS,
    BatchFilters,
    custom_id_filter,
    metadata_filter,
    metadata_tags,
    model_tags,
    status_filter,
    time_filter,
)
from batchwright.rules.pagination import BadParameter


@pytest.mark.parametrize("status", BatchStatus)
def test_each_status_that_clients_see_is_a_filter(status: BatchStatus) -> None:
    assert status_filter(status.value) is status


@pytest.mark.parametrize("text", ["", "done", "COMPLETED", "completed,failed", "\0"])
def test_an_unknown_status_is_refused_with_the_list_of_statuses(text: str) -> None:
    with pytest.raises(
        BadParameter, match=r"Supported values are: 'validating', .* and 'cancelled'"
    ) as error:
        status_filter(text)
    assert (error.value.param, error.value.code) == ("status", "invalid_value")


def test_a_time_is_in_unix_seconds() -> None:
    assert time_filter("1795000000", "created_after") == datetime.fromtimestamp(1795000000, UTC)
    assert time_filter("0", "created_after") == datetime(1970, 1, 1, tzinfo=UTC)
    assert time_filter("253402300799", "created_after") == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "invalid_type"),
        ("2026-11-24", "invalid_type"),
        ("1e9", "invalid_type"),
        ("1.5", "invalid_type"),
        ("\u0663", "invalid_type"),
        ("9" * 5000, "invalid_type"),
        ("9" * 18, "invalid_value"),
        ("-" + "9" * 18, "invalid_value"),
        ("-1", "invalid_value"),
        ("253402300800", "invalid_value"),
    ],
)
def test_a_wrong_time_is_refused_with_the_name_of_the_parameter(text: str, code: str) -> None:
    with pytest.raises(BadParameter) as error:
        time_filter(text, "created_before")
    assert (error.value.param, error.value.code) == ("created_before", code)


def test_pairs_of_metadata_are_read_from_names_with_brackets() -> None:
    query = [("metadata[run]", "7"), ("limit", "2"), ("metadata[a]b]", ""), ("metadata[]", "x")]
    assert metadata_filter(query) == (("run", "7"), ("a]b", ""), ("", "x"))


@pytest.mark.parametrize("name", ["metadata", "metadata[", "metadata[run", "metadata[run]x"])
def test_metadata_without_a_key_in_brackets_is_refused(name: str) -> None:
    with pytest.raises(BadParameter, match=r"metadata\[key\]=value") as error:
        metadata_filter([(name, "x")])
    assert (error.value.param, error.value.code) == ("metadata", "invalid_value")


def test_a_key_of_metadata_with_two_values_is_refused() -> None:
    with pytest.raises(BadParameter, match="the key 'run' has two values") as error:
        metadata_filter([("metadata[run]", "7"), ("metadata[team]", "7"), ("metadata[run]", "8")])
    assert (error.value.param, error.value.code) == ("metadata", "invalid_value")


def test_a_pair_of_metadata_that_is_given_twice_counts_once() -> None:
    query = [("metadata[run]", "7")] * (MAX_METADATA_PAIRS + 1)
    assert metadata_filter(query) == (("run", "7"),)


def test_a_filter_has_as_many_pairs_of_metadata_as_a_batch() -> None:
    query = [(f"metadata[{number}]", "x") for number in range(MAX_METADATA_PAIRS + 1)]
    assert len(metadata_filter(query[1:])) == 16
    with pytest.raises(BadParameter, match="at most 16 pairs are allowed, but got 17") as error:
        metadata_filter(query)
    assert (error.value.param, error.value.code) == ("metadata", "invalid_value")


def test_the_tags_of_a_filter_are_among_those_of_a_batch_that_matches() -> None:
    filters = BatchFilters(model="m", metadata=(("a", "1"), ("b", "2")))
    of_batch = [*metadata_tags({"a": "1", "b": "2", "c": "3"}.items()), *model_tags(["m", "n"])]
    assert set(filters.tags) <= set(of_batch)
    assert len(set(of_batch)) == 5


def test_different_pairs_and_models_have_different_tags() -> None:
    pairs = [("a", "b=c"), ("a=b", "c"), ("ab", ""), ("", "ab"), ("a", "b"), ("b", "a")]
    tags = [*metadata_tags(pairs), *model_tags(["a\0b", "ab", "a"])]
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("text", [None, "a", " ", "\0", "\U0001f600" * MAX_CUSTOM_ID_CHARACTERS])
def test_any_text_that_is_not_too_long_is_a_custom_id(text: str | None) -> None:
    assert custom_id_filter(text) == text


@pytest.mark.parametrize("text", ["", "x" * (MAX_CUSTOM_ID_CHARACTERS + 1)])
def test_an_empty_or_long_custom_id_is_refused_with_its_length(text: str) -> None:
    with pytest.raises(BadParameter, match=f"expected 1 to 1024 characters, but got {len(text)}") as error:
        custom_id_filter(text)
    assert (error.value.param, error.value.code) == ("custom_id", "invalid_value")
