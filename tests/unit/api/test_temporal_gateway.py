"""The API reports that it cannot decrypt data in Temporal if the key is missing."""

import dataclasses
from collections.abc import AsyncGenerator
from typing import cast

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter

from batchwright.api.temporal_gateway import TemporalClientGateway
from batchwright.contracts.temporal_payloads.ingestion import IngestionActivities
from batchwright.settings import load
from batchwright.temporal import DATA_CONVERTER, TemporalUnavailable
from batchwright.temporal.codec import EncryptionCodec, KeylessCodec, PayloadKey


class ClientOfEncryptedHistory:
    """A fake client of a server whose workflows have an encrypted result of ingestion."""

    data_converter: DataConverter = dataclasses.replace(DATA_CONVERTER, payload_codec=KeylessCodec())

    def __init__(self, result: Payload) -> None:
        scheduled, completed = HistoryEvent(event_id=1), HistoryEvent(event_id=2)
        begun = scheduled.activity_task_scheduled_event_attributes
        begun.activity_type.name = IngestionActivities.ingest.__name__
        ended = completed.activity_task_completed_event_attributes
        ended.scheduled_event_id = 1
        ended.result.payloads.append(result)
        self._events = scheduled, completed

    def get_workflow_handle(self, id: str) -> "ClientOfEncryptedHistory":
        return self

    async def fetch_history_events(self, **options: object) -> AsyncGenerator[HistoryEvent]:
        for event in self._events:
            yield event


async def test_a_result_of_ingestion_that_cannot_be_decrypted_is_reported_as_unavailable() -> None:
    codec = EncryptionCodec([PayloadKey.of("k", b"0" * 32)])
    [result] = await codec.encode([Payload(data=b"{}")])
    gateway = TemporalClientGateway(cast(Client, ClientOfEncryptedHistory(result)), load())
    with pytest.raises(TemporalUnavailable, match="cannot be decrypted"):
        await gateway.ingested("batch_1")
