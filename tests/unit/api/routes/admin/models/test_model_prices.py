"""Prices of models: how operators set and read them, and their currency."""

from pathlib import Path

import pytest

from batchwright.contracts.api_objects.operator import ModelSettingsObject
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.unit.api.routes.admin.models.model_settings import origins, patch, values


async def test_prices_are_set_changed_and_shown_with_their_origin(api: ApiFixture) -> None:
    await patch(api, "llama", {"prices": {"currency": "EUR", "input": 0.15, "output": "0.60"}})
    found = read(await patch(api, "llama", {"prices": {"input": 2}}), ModelSettingsObject)
    assert values(found) | {"prices.currency": "EUR", "prices.input": "2", "prices.output": "0.6"} == values(
        found
    )
    assert (origins(found)["prices.input"], origins(found)["prices.request"]) == ("change", "default")
    undone = read(await patch(api, "llama", {"prices": None}), ModelSettingsObject)
    assert "prices.input" not in values(undone)


@pytest.mark.parametrize(
    ("price", "shown_price"), [(-1, "-1"), ("cheap", "'cheap'"), (True, "True"), (None, None)]
)
async def test_a_price_that_is_negative_or_no_number_is_rejected(
    api: ApiFixture, price: object, shown_price: str | None
) -> None:
    answer = await patch(api, "llama", {"prices": {"input": price}})
    if shown_price is None:  # null undoes an earlier change
        assert answer.status_code == 200
        return
    assert answer.status_code == 400
    assert error_of(answer).param == "prices.input"
    assert error_of(answer).message.endswith(f"with at most 6 decimal places; it is {shown_price}.")


async def test_all_models_have_one_currency(api: ApiFixture) -> None:
    await patch(api, "llama", {"prices": {"currency": "EUR", "input": 1}})
    answer = await patch(api, "qwen", {"prices": {"currency": "USD", "input": 1}})
    assert answer.status_code == 400
    assert error_of(answer).param == "prices.currency"
    assert "the prices of 'llama' are in EUR, and those of 'qwen' are in USD" in error_of(answer).message


async def test_all_models_of_a_gateway_have_its_currency(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("gateway: {url: 'http://one', prices: {currency: EUR, input: 1}}")
    async with open_api(registry=file, backends=[]) as api:
        answer = await patch(api, "any", {"prices": {"currency": "USD", "input": 2}})
        assert answer.status_code == 400
        assert (
            "the prices of 'any' are in USD, and those of 'the gateway' are in EUR"
            in error_of(answer).message
        )
        found = read(await patch(api, "any", {"prices": {"input": 2}}), ModelSettingsObject)
    assert (values(found)["prices.currency"], values(found)["prices.input"]) == ("EUR", "2")
    assert (origins(found)["prices.currency"], origins(found)["prices.input"]) == ("file", "change")
