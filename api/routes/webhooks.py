"""/v1/x/webhooks: endpoints (URLs of clients) that receive events about batches, and deliveries of events."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from batchwright.api.audit_log.recorder import AuditLog, in_any_state
from batchwright.api.audit_log.targets import WebhookTarget
from batchwright.api.auth.caller import tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import delivery_not_found, invalid_value, webhook_not_found
from batchwright.api.openapi import enum_schema, error_responses, limit_schema
from batchwright.api.schemas.json_body import (
    json_body_spec,
    optional_body_spec,
    read_json_object,
    read_optional_object,
    reject_unknown,
    required_text,
)
from batchwright.api.schemas.openai_objects import json_response
from batchwright.api.schemas.webhooks import (
    RotateBody,
    TestBody,
    WebhookBody,
    WebhookChanges,
    delivery_object,
    parse_description,
    parse_event,
    parse_events,
    parse_overlap,
    parse_switch,
    parse_webhook,
    webhook_object,
)
from batchwright.api.services.webhooks import Webhooks
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.pages import page_of
from batchwright.contracts.api_objects.webhooks import (
    DeletedWebhook,
    DeliveryObject,
    DeliveryPage,
    DeliveryStatus,
    WebhookObject,
    WebhookPage,
)
from batchwright.database.errors import UnknownCursor
from batchwright.database.tables.webhooks.webhook_endpoints import EndpointChanges, WebhookEndpoint
from batchwright.rules.ids import is_batch_id, is_delivery_id, is_webhook_id
from batchwright.rules.pagination import page_limit

_STATUSES: dict[str, DeliveryStatus] = {
    "pending": "pending",
    "delivered": "delivered",
    "failed": "failed",
}


class WebhookRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._settings, self._clock = deps.settings, deps.clock
        self._endpoints = deps.database.webhook_endpoints
        self._deliveries = deps.database.webhook_deliveries
        self._webhooks, self._audit_log = Webhooks(deps), AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/x/webhooks", tags=["Webhooks"])
        one, missing, of_tenant = "/{webhook_id}", error_responses(404), self._audit_log.of_tenant
        router.add_api_route(
            "",
            self.create,
            methods=["POST"],
            response_model=WebhookObject,
            openapi_extra=json_body_spec(WebhookBody),
            responses=error_responses(429),
        )
        router.add_api_route("", self.list, response_model=WebhookPage, responses=missing)
        router.add_api_route(one, self.get, response_model=WebhookObject, responses=missing)
        router.add_api_route(
            one,
            self.change,
            methods=["PATCH"],
            response_model=WebhookObject,
            openapi_extra=json_body_spec(WebhookChanges),
            responses=missing,
            dependencies=of_tenant(AuditAction.WEBHOOK_CHANGE, WebhookTarget),
        )
        router.add_api_route(
            one,
            self.delete,
            methods=["DELETE"],
            response_model=DeletedWebhook,
            responses=missing,
            dependencies=of_tenant(AuditAction.WEBHOOK_DELETE, WebhookTarget, ends=in_any_state),
        )
        router.add_api_route(
            f"{one}/rotate",
            self.rotate,
            methods=["POST"],
            response_model=WebhookObject,
            openapi_extra=optional_body_spec(RotateBody),
            responses=missing,
            dependencies=of_tenant(AuditAction.WEBHOOK_ROTATE, WebhookTarget),
        )
        router.add_api_route(
            f"{one}/test",
            self.test,
            methods=["POST"],
            response_model=DeliveryObject,
            openapi_extra=optional_body_spec(TestBody),
            responses=error_responses(404, 409),
        )
        deliveries = f"{one}/deliveries"
        router.add_api_route(deliveries, self.deliveries, response_model=DeliveryPage, responses=missing)
        delivery = f"{deliveries}/{{delivery_id}}"
        router.add_api_route(delivery, self.delivery, response_model=DeliveryObject, responses=missing)
        router.add_api_route(
            f"{delivery}/replay",
            self.replay,
            methods=["POST"],
            response_model=DeliveryObject,
            responses=error_responses(404, 409),
        )
        return router

    async def create(self, request: Request) -> Response:
        """Create a webhook endpoint: a URL to which events about batches are sent. Only this response
        contains its secret.
        """
        spec = parse_webhook(await read_json_object(request))
        row, secret = await self._webhooks.create(spec, tenant_of(request, self._settings))
        return json_response(webhook_object(row, self._clock(), secret))

    async def list(
        self,
        request: Request,
        limit: Annotated[str | None, Query(), limit_schema(20, 100)] = None,
        after: Annotated[str | None, Query(description="a webhook id")] = None,
        batch_id: Annotated[
            str | None, Query(description="the endpoint of this batch, instead of those for all batches")
        ] = None,
    ) -> Response:
        """List webhook endpoints (URLs to which events are sent), newest first."""
        tenant, page_size = tenant_of(request, self._settings), page_limit(limit, default=20, maximum=100)
        if batch_id is not None and not is_batch_id(batch_id):
            raise invalid_value("batch_id", "Invalid 'batch_id': expected the id of a batch.")
        if after is not None and not is_webhook_id(after):
            raise webhook_not_found(after)
        try:
            page = self._endpoints.page(tenant, limit=page_size, after=after, batch_id=batch_id or "")
            rows, more = await page
        except UnknownCursor as error:
            raise webhook_not_found(error.id) from None
        now = self._clock()
        return json_response(page_of(WebhookPage, [webhook_object(row, now) for row in rows], more=more))

    async def get(self, request: Request, webhook_id: str) -> Response:
        """Retrieve a webhook endpoint (a URL to which events are sent), without its secret."""
        return json_response(webhook_object(await self._row(request, webhook_id), self._clock()))

    async def change(self, request: Request, webhook_id: str) -> Response:
        """Change, enable or disable a webhook endpoint. Fields that are missing stay unchanged."""
        fields = await read_json_object(request)
        reject_unknown(fields, WebhookChanges.model_fields)
        row = await self._row(request, webhook_id)
        changes = EndpointChanges(
            url=None if fields.get("url") is None else required_text(fields, "url"),
            events=parse_events(fields),
            description=parse_description(fields),
            details=parse_switch(fields, "details"),
            enabled=parse_switch(fields, "enabled"),
        )
        changed = await self._webhooks.change(row, changes)
        return json_response(webhook_object(changed, self._clock()))

    async def delete(self, request: Request, webhook_id: str) -> Response:
        """Delete a webhook endpoint and the list of its deliveries. No further events are sent to the
        endpoint.
        """
        row = await self._row(request, webhook_id)
        if not await self._endpoints.delete(row.tenant, row.id):
            raise webhook_not_found(webhook_id)
        return json_response(DeletedWebhook(id=row.id))

    async def rotate(self, request: Request, webhook_id: str) -> Response:
        """Replace the secret of a webhook endpoint. For the time `overlap_seconds`, events are signed with
        both the old and the new secret.
        """
        overlap = parse_overlap(await read_optional_object(request))
        row, secret = await self._webhooks.rotate(await self._row(request, webhook_id), overlap)
        return json_response(webhook_object(row, self._clock(), secret))

    async def test(self, request: Request, webhook_id: str) -> Response:
        """Send a test event to a webhook endpoint. The batch in the event does not exist."""
        fields = await read_optional_object(request)
        reject_unknown(fields, TestBody.model_fields)
        event = None if fields.get("event") is None else parse_event(fields["event"], "event")
        delivery = await self._webhooks.test(await self._row(request, webhook_id), event)
        return json_response(delivery_object(delivery))

    async def deliveries(
        self,
        request: Request,
        webhook_id: str,
        limit: Annotated[str | None, Query(), limit_schema(20, 100)] = None,
        after: Annotated[str | None, Query(description="a delivery id")] = None,
        status: Annotated[
            str | None, Query(description="only deliveries with this status"), enum_schema(*_STATUSES)
        ] = None,
    ) -> Response:
        """List the deliveries to a webhook endpoint, newest first. A delivery is one event for the endpoint,
        with all attempts to send it.
        """
        row, page_size = await self._row(request, webhook_id), page_limit(limit, default=20, maximum=100)
        if status is not None and status not in _STATUSES:
            named = ", ".join(_STATUSES)
            raise invalid_value("status", f"Invalid 'status': expected one of {named}.")
        if after is not None and not is_delivery_id(after):
            raise delivery_not_found(after)
        chosen = None if status is None else _STATUSES[status]
        try:
            found, more = await self._deliveries.page(
                row.tenant, row.id, limit=page_size, after=after, status=chosen
            )
        except UnknownCursor as error:
            raise delivery_not_found(error.id) from None
        return json_response(page_of(DeliveryPage, [delivery_object(row) for row in found], more=more))

    async def delivery(self, request: Request, webhook_id: str, delivery_id: str) -> Response:
        """Retrieve a delivery: one event for a webhook endpoint, with all attempts to send it."""
        row = await self._row(request, webhook_id)
        return json_response(delivery_object(await self._webhooks.delivery(row, delivery_id)))

    async def replay(self, request: Request, webhook_id: str, delivery_id: str) -> Response:
        """Send the event of an ended delivery to the webhook endpoint again, with the same header
        `webhook-id`.
        """
        row = await self._row(request, webhook_id)
        return json_response(delivery_object(await self._webhooks.replay(row, delivery_id)))

    async def _row(self, request: Request, webhook_id: str) -> WebhookEndpoint:
        return await self._webhooks.get(tenant_of(request, self._settings), webhook_id)
