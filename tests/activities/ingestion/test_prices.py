"""A batch gets the prices of its models when its input is validated."""

from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow
from tests.activities.ingestion.fresh_batch import FreshBatch, a_batch, a_line

CHEAP, DEAR = PriceConfig(input="0.1"), PriceConfig(input="9")


async def capped(batch: FreshBatch) -> BatchRow:
    """Ingest the batch with a cap on its cost, and return its row."""
    batch.order = batch.order.model_copy(update={"max_cost": "5"})
    await batch.ingest()
    return await batch.row()


async def test_prices_are_stored_with_the_batch_and_sent_with_its_slices() -> None:
    batch = await a_batch(a_line("1"), a_line("2", model="b"))
    batch.prices = {"a": CHEAP, "c": DEAR}
    result = await batch.ingest()
    assert {share.model: share.prices for share in result.models} == {"a": CHEAP, "b": None}
    assert (await batch.row()).prices == {"a": CHEAP}


async def test_an_alias_has_the_prices_of_its_model() -> None:
    batch = await a_batch(a_line("1", model="gpt"), aliases={"gpt": "a"})
    batch.prices = {"a": CHEAP}
    assert (await batch.ingest()).models[0].prices == CHEAP


async def test_another_attempt_keeps_the_prices_of_the_attempt_that_began_the_batch() -> None:
    batch = await a_batch(a_line("1"))
    batch.prices = {"a": CHEAP}
    await batch.ingest()
    batch.prices = {"a": DEAR}
    assert (await batch.ingest()).models[0].prices == CHEAP
    assert (await batch.row()).prices == {"a": CHEAP}


async def test_a_cap_without_prices_for_a_model_fails_the_batch_and_names_the_model() -> None:
    batch = await a_batch(a_line("1"), a_line("2", model="b"))
    batch.prices = {"a": CHEAP}
    row = await capped(batch)
    assert row.status is BatchStatus.FAILED
    [error] = row.errors
    assert (error.code, error.param) == ("price_missing", "x_batchwright.max_cost")
    assert "cap of 5 on its cost, but the model 'b' has no prices" in error.message
    assert batch.written() == []


async def test_a_cap_needs_no_prices_of_models_whose_lines_are_not_sent() -> None:
    batch = await a_batch(a_line("1"), a_line("2", model="nope"))
    batch.prices = {"a": CHEAP}
    assert (await capped(batch)).status is BatchStatus.IN_PROGRESS


async def test_prices_in_two_currencies_fail_the_batch() -> None:
    batch = await a_batch(a_line("1"), a_line("2", model="b"))
    batch.prices = {"a": CHEAP, "b": PriceConfig(currency="EUR")}
    await batch.ingest()
    [error] = (await batch.row()).errors
    assert error.code == "mixed_currencies"
    assert "in USD, and those of 'b' are in EUR" in error.message
