"""Batches made of dead letters: of one, or of all of a batch. Asked again, nothing is made twice."""

from collections.abc import Mapping, Sequence

from api.allowance import Allowance
from api.chances import Beginning
from api.errors import conflict
from api.remaking import Remaking
from api.services import Services
from batchwright.contracts.batch import BatchOrder, Chance, Origin
from batchwright.database.dead_letters_base import Buried
from batchwright.database.rows import BatchRow
from batchwright.rules.results import digest_of

_ATTEMPTS = 3


class LetterRetries:
    def __init__(self, services: Services, beginning: Beginning) -> None:
        self._services, self._beginning = services, beginning
        self._letters = services.database.dead_letters
        self._remaking = Remaking(services)

    async def one(self, found: Buried, fields: Mapping[str, object]) -> BatchRow:
        """The batch that asks the letter's line again: a new one, or the one there is. Raises ApiError."""
        if found.retry is not None:
            return await self._begun(found.retry)
        order = await self._give(found.tenant, found.batch_id, [found.letter.id], fields)
        if order is None:  # somebody else has retried or deleted it meanwhile
            again = await self._letters.get(found.letter.id)
            if again is None or again.retry is None:
                raise conflict(f"The dead letter '{found.letter.id}' was deleted meanwhile.")
            order = again.retry
        return await self._begun(order)

    async def all_of(self, tenant: str, batch_id: str, fields: Mapping[str, object]) -> list[BatchRow]:
        """The batches that ask again what nobody does yet, and those that a broken call has not begun.

        Raises ApiError.
        """
        orders = await self._letters.not_begun(tenant, batch_id)
        for _ in range(_ATTEMPTS):
            ids = await self._letters.not_retried(tenant, batch_id)
            order = await self._give(tenant, batch_id, ids, fields) if ids else None
            if order is not None:
                orders.append(order)
            if order is not None or not ids:
                break
        return [await self._begun(order) for order in orders]

    async def _give(
        self, tenant: str, batch_id: str, ids: Sequence[str], fields: Mapping[str, object]
    ) -> BatchOrder | None:
        """The order that has the letters now; None where some of them were not to be had."""
        row = await self._services.database.batches.get(tenant, batch_id)
        if row is None:
            raise conflict(f"The batch '{batch_id}' of these letters is gone.")
        creation = self._remaking.creation(row, fields, key_id="")  # an operator asks
        await Allowance(self._services, tenant).check_live()

        async def wanted() -> bytes:
            return b"".join(digest_of(id) for id in ids)

        file = await self._remaking.input_of(row, wanted)
        made = self._remaking.order(row, creation._replace(input_file_id=file.id))
        order = made.model_copy(update={"origin": Origin(batch_id=batch_id, chance=Chance.RETRY)})

        async def claim() -> BatchOrder | None:
            return order if await self._letters.claim(ids, order, file) else None

        return await self._remaking.claim(order, file, claim)

    async def _begun(self, order: BatchOrder) -> BatchRow:
        there = await self._services.database.batches.get(order.tenant, order.batch_id)
        return there or await self._beginning.begin(order)
