"""Client of the routes `/v1/x/webhooks`, for the command line."""

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from batchwright.contracts.api_objects.webhooks import (
    DeletedWebhook,
    DeliveryObject,
    DeliveryPage,
    WebhookObject,
    WebhookPage,
)
from batchwright.starter.client import Client

_WEBHOOKS = "/v1/x/webhooks"


class WebhookClient:
    """A client for the API routes of webhooks and their deliveries.

    Each method raises ClientError if the call fails.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, body: Mapping[str, object]) -> WebhookObject:
        return self._client.call("POST", _WEBHOOKS, WebhookObject, body)

    def page(self, query: Mapping[str, str | int]) -> WebhookPage:
        """Return one page of webhook endpoints, newest first.

        Args:
            query: query parameters of the API, such as `limit`.
        """
        return self._client.call("GET", f"{_WEBHOOKS}?{urlencode(query)}", WebhookPage)

    def get(self, id: str) -> WebhookObject:
        return self._client.call("GET", _path(id), WebhookObject)

    def change(self, id: str, changes: Mapping[str, object]) -> WebhookObject:
        return self._client.call("PATCH", _path(id), WebhookObject, changes)

    def delete(self, id: str) -> DeletedWebhook:
        return self._client.call("DELETE", _path(id), DeletedWebhook)

    def rotate(self, id: str, overlap_seconds: int) -> WebhookObject:
        body = {"overlap_seconds": overlap_seconds}
        return self._client.call("POST", _path(id, "rotate"), WebhookObject, body)

    def test(self, id: str, event: str | None) -> DeliveryObject:
        body = {} if event is None else {"event": event}
        return self._client.call("POST", _path(id, "test"), DeliveryObject, body)

    def deliveries(self, id: str, query: Mapping[str, str | int]) -> DeliveryPage:
        """Return one page of the deliveries to an endpoint, newest first.

        Args:
            query: query parameters of the API, such as `status`.
        """
        return self._client.call("GET", f"{_path(id, 'deliveries')}?{urlencode(query)}", DeliveryPage)

    def delivery(self, id: str, delivery_id: str) -> DeliveryObject:
        return self._client.call("GET", _path(id, "deliveries", delivery_id), DeliveryObject)

    def replay(self, id: str, delivery_id: str) -> DeliveryObject:
        path = _path(id, "deliveries", delivery_id, "replay")
        return self._client.call("POST", path, DeliveryObject)


def _path(*parts: str) -> str:
    return "/".join([_WEBHOOKS, *(quote(part, safe="") for part in parts)])
